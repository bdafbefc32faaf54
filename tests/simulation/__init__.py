"""Whole installations on virtual time: seeds, faults, verdicts. `python -m tests.simulation`."""
