"""The fixtures of the pair and of processes, as beside their own tests."""

from tests.e2e.conftest import gateways
from tests.pairing.conftest import events, harness, ordered, pytest_itemcollected

__all__ = ["events", "gateways", "harness", "ordered", "pytest_itemcollected"]
