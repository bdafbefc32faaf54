"""Holds what each process says in an outage against what its queues really have."""
