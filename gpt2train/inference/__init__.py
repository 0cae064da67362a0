"""Text generation with a KV cache, on one device or distributed over several processes."""
