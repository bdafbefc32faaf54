"""A billing system: transactions in batches, counted exactly once, though workers die."""
