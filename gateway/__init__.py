"""Pairgate: a messaging gateway that pairs two namespaces, so that a producer notices no outage."""
