"""Puts the parts of a process together. `building` has the stages, for all roles."""
