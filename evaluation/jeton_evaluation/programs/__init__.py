"""The programs that the benchmarks measure, and the harness that runs them by any mechanism."""
