"""Decides if the listeners of a configuration learn of new messages, or poll."""

from collections.abc import Sequence
from typing import Protocol

from gateway.config.options import Config
from gateway.domain.status.listening import Wake
from gateway.extensions.listing import parts


class WakeWay(Protocol):
    """A way by which listeners learn of new messages: a part at the point `wakes`."""

    def informs(self, config: Config) -> bool:
        """True if the listeners of this configuration get triggers."""
        ...

    def hears_all_senders(self, config: Config, gateways: Sequence[str]) -> bool:
        """
        True if a connected listener gets a trigger for every message. `gateways`: URLs of gateways
        that it follows instead of the configured triggers.
        """
        ...

    def needs_no_gateway(self, config: Config) -> bool:
        """True if triggers reach listeners that have no connection to a gateway."""
        ...


def hears_all_senders(config: Config, gateways: Sequence[str] = ()) -> bool:
    """As `WakeWay.hears_all_senders`; False without a way."""
    ways: Sequence[WakeWay] = parts("wakes")
    return any(way.hears_all_senders(config, gateways) for way in ways)


def needs_no_gateway(config: Config) -> bool:
    """As `WakeWay.needs_no_gateway`; False without a way."""
    ways: Sequence[WakeWay] = parts("wakes")
    return any(way.needs_no_gateway(config) for way in ways)


def expected_wake(config: Config) -> Wake:
    """The `Wake` of a listener of this configuration while its triggers are connected."""
    ways: Sequence[WakeWay] = parts("wakes")
    options = config.listener.options
    if not any(way.informs(config) for way in ways):
        return Wake(announced=False, poll_every=options.idle_max)
    if hears_all_senders(config, config.listener.triggers):
        return Wake(announced=True, poll_every=None)
    return Wake(announced=False, poll_every=options.sweep)
