"""What happens, in order: one flow a file."""
