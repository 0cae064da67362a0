"""Contracts of libraries that they do not promise to keep, one module a library."""
