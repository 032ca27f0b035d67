"""Stages of `tests/benchmarks/gpu.py`: what each of them measures, its results file, and the page."""
