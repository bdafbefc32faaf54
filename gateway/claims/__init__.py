"""Large bodies in a store of their own, and many small messages in one."""
