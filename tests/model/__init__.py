"""The protocol of failover and syphon, small enough to look at every history that it has."""
