"""The driver's side of a running flow, for any host."""
