"""Decides if all new messages are announced to the listeners of a configuration."""

from collections.abc import Sequence
from typing import Final

import attrs

from gateway.app.namespaces import is_own
from gateway.config.endpoints import ADMIN, SERVE
from gateway.config.options import Config
from gateway.extensions.announcements.options import TRIGGERS


@attrs.frozen
class Announced:
    """
    Implements `WakeWay`. That every message is announced is certain only for a store of our own:
    the single gateway that has it open announces each message of its queues. Any other namespace
    may have senders or syphons that announce nothing.
    """

    def informs(self, config: Config) -> bool:
        has_admin = any(each.protocol == ADMIN for each in config.endpoints_of(SERVE).values())
        follows = bool(config.listener.triggers)
        return has_admin or follows or self.needs_no_gateway(config)

    def hears_all_senders(self, config: Config, gateways: Sequence[str]) -> bool:
        triggers = config.of(TRIGGERS)
        kept_at_home = triggers is None or triggers.namespace in (None, config.home.name)
        return is_own(config.home) and kept_at_home and not gateways

    def needs_no_gateway(self, config: Config) -> bool:
        return config.of(TRIGGERS) is not None


WAY: Final = Announced()
