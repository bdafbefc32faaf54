"""A namespace whose operations are recorded, as the gateway does it."""

from gateway.interception.broker import InterceptedBroker
from gateway.ports import Broker
from gateway.telemetry.abilities import AbilityInterceptor, AbilityWatch, ReceiveInterceptor


def watched(broker: Broker, watch: AbilityWatch) -> InterceptedBroker:
    """The namespace; `watch` records its operations and those of its receivers."""
    around = [AbilityInterceptor(watch), ReceiveInterceptor(watch)]
    return InterceptedBroker(broker, around, address=watch.address)
