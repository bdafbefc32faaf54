"""Decides if all new messages are announced to the listeners of this configuration."""

from collections.abc import Sequence

from gateway.app.namespaces import is_own
from gateway.config.options import ADMIN, SERVE, Config
from gateway.domain.status.listening import Wake
from gateway.extensions.announcements.configuration import TRIGGERS


def hears_all_senders(config: Config, gateways: Sequence[str] = ()) -> bool:
    """
    True if a connected listener gets a trigger for every message. That is certain only for a store
    of our own: the single gateway that has it open announces each message of its queues. Any other
    namespace may have senders or syphons that announce nothing.

    `gateways`: URLs of the gateways that a listener follows instead of the configured triggers.
    """
    triggers = config.of(TRIGGERS)
    kept_at_home = triggers is None or triggers.namespace in (None, config.home.name)
    return is_own(config.home) and kept_at_home and not gateways


def expected_wake(config: Config) -> Wake:
    """The `Wake` of a listener of this configuration while its triggers are connected."""
    options, gateways = config.listener.options, config.listener.triggers
    has_admin = any(each.protocol == ADMIN for each in config.endpoints_of(SERVE).values())
    if config.of(TRIGGERS) is None and not gateways and not has_admin:
        return Wake(announced=False, poll_every=options.idle_max)
    if hears_all_senders(config, gateways):
        return Wake(announced=True, poll_every=None)
    return Wake(announced=False, poll_every=options.sweep)
