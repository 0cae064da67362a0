"""Step commoncrawl: pages of Common Crawl that its index names, without a request to their sites."""
