"""Benchmarks and measurements; RESULTS.md beside them holds what they printed, with machine and command."""
