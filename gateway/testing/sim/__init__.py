"""Whole installations on virtual time: seeds, faults, verdicts. `python -m gateway.testing.sim`."""
