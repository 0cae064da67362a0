"""Sources of documents other than URL lists: web archives, and local files of text, records or pages."""
