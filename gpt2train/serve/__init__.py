"""HTTP server with continuous batching, and its client."""
