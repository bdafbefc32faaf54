"""The protocol of failover and syphon, small enough to explore every history."""
