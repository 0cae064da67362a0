"""Programs that run a peer in an environment of its own, started by the benchmarks."""
