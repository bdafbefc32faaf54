"""Pairgate: a messaging gateway that pairs two namespaces, so that a producer notices no outage."""

__version__ = "0.1.0"  # also in pyproject.toml and in the chart: a test compares them
