"""How a program is written: flows, streams, scopes, batches, pacts, operators and probes."""
