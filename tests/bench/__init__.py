"""Benchmarks: what is compared runs in the same process, in turn, several times; medians and ratios are what counts."""
