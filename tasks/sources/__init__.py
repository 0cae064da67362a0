"""Sources other than a list of URLs: web archives, and text, records or pages that lie in files."""
