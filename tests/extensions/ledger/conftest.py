"""The fixture of processes, as beside their own tests."""

from tests.e2e.conftest import gateways

__all__ = ["gateways"]
