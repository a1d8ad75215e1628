"""Where a dataflow runs: Spark, from finding its Java to starting a session."""
