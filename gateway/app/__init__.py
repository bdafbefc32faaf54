"""Puts the parts together and owns the tasks: one module for each function of `pairgate`."""
