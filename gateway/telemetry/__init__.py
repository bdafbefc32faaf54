"""Observers: they report events to people and machines."""
