"""Benchmarks of the router's own parts, by the CPU time that they take."""
