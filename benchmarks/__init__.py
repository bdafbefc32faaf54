"""Measures the costs and the gains of the gateway, each beside a baseline in the same run."""
