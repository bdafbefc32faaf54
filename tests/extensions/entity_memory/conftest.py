from tests.pairing.conftest import events, harness, ordered, pytest_itemcollected

__all__ = ["events", "harness", "ordered", "pytest_itemcollected"]
