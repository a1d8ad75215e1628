"""How a flow runs: the step loop, activations, channels, the in-process host and its checker."""
