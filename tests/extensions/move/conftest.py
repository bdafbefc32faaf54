from tests.e2e.conftest import gateways
from tests.pairing.conftest import events, harness, ordered, pytest_itemcollected

__all__ = ["events", "gateways", "harness", "ordered", "pytest_itemcollected"]
