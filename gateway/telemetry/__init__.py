"""Observers: what happened, told to people and machines."""
