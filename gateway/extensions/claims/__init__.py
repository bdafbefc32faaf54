"""Claim check (large bodies in a store of their own) and packing (many small messages in one)."""
