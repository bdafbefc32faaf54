"""Puts the parts of a process together. `interceptors` and `parts` have the order of everything."""
