"""Connections between workers: listener, handshake, links and wire format."""
