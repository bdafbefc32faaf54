"""Presents two namespaces as one: failover, backlog, probes, syphon. Uses only domain and ports."""
