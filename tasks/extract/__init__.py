"""HTML to text: decoding, prefilter, main text, metadata, soft 404 detection."""
