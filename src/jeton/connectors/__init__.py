"""Sources and sinks that a long-lived query reads and writes by itself."""
