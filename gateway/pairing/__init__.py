"""Two namespaces as one: failover, backlog, probe, syphon. Knows only the domain and the ports."""
