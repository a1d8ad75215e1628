"""Benchmarks: each module measures one thing and has a `main(argv)` behind ``jeton bench NAME``.

They use only the public API. Figures are ratios measured in one run: the machine is noisy.
"""
