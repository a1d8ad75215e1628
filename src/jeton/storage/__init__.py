"""Durable state: file systems, versions of state, manifests and leases."""
