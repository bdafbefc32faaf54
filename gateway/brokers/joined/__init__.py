"""Several queues as one."""
