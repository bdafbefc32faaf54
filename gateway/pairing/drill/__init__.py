"""Rehearses an outage: cuts this process's own way to a namespace for a while."""
