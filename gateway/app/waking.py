"""Whether every message is announced to the listeners of this configuration."""

from collections.abc import Sequence

from gateway.app.namespaces import is_own
from gateway.config.options import ADMIN, Config
from gateway.domain.status import Wake


def hears_all_senders(config: Config, gateways: Sequence[str] = ()) -> bool:
    """
    Whether a connected listener hears of every message. That is known only of an own store: the
    one gateway that has it open announces whatever comes to a queue. Of any other namespace there
    may be senders, or syphons, that announce nothing.

    `gateways`: the URLs of those that a listener follows in place of the configured triggers.
    """
    triggers = config.triggers
    kept_at_home = triggers is None or triggers.namespace in (None, config.home.name)
    return is_own(config.home) and kept_at_home and not gateways


def expected_wake(config: Config) -> Wake:
    """How a listener of this configuration learns of a message while its triggers are connected."""
    options, gateways = config.listener.options, config.listener.triggers
    has_admin = any(endpoint.protocol == ADMIN for endpoint in config.endpoints)
    if config.triggers is None and not gateways and not has_admin:
        return Wake(announced=False, look_every=options.idle_max)
    if hears_all_senders(config, gateways):
        return Wake(announced=True, look_every=None)
    return Wake(announced=False, look_every=options.sweep)
