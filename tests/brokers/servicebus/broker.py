"""Parts of the tests of broker that other tests need, too."""

from gateway.brokers.servicebus.peer import EntityTokens
from tests.harness.clocks import VirtualClock


def tokens(clock=None) -> EntityTokens:
    return EntityTokens(
        origin="http://east",
        key_name="sender",
        key="secret",
        lifetime=3600.0,
        clock=clock or VirtualClock(),
    )
