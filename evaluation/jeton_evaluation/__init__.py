"""The evaluation of Jeton: benchmarks and NEXMark, behind `jeton bench` and `jeton nexmark`."""
