"""Discovery: domains -> URLs by sitemaps, feeds and links, and pages of Common Crawl by its index."""
