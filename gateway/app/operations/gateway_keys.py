"""
The keys with which a process reaches a running gateway: those of the configuration, also after a
reload.
"""

import attrs

from gateway.app.failure import Failure
from gateway.app.operations.admin_endpoint import AdminEndpoint
from gateway.app.operations.targets import policy_with
from gateway.capabilities import ReplacesKey
from gateway.config.file import Loaded
from gateway.config.options import Config
from gateway.domain.access import Right
from gateway.domain.errors import NotAuthorized
from gateway.domain.events.gateway import Doubtful
from gateway.offering import offered
from gateway.ports import Broker, Observer


@attrs.frozen
class _Reached:
    """A gateway that was opened as a namespace."""

    broker: ReplacesKey
    name: str
    right: Right


@attrs.define(eq=False, kw_only=True)
class GatewayKeys:
    """Passes the keys on to those who use them; `reload` is for `ProcessControl.on_reload`."""

    config: Config  # the latest
    observer: Observer
    _reached: list[_Reached] = attrs.field(factory=list, init=False)

    def keep(self, broker: Broker, name: str, right: Right) -> None:
        """Give each later key with that right to a gateway that was opened as a namespace."""
        if (replaces := offered(broker, ReplacesKey)) is not None:
            self._reached.append(_Reached(replaces, name, right))

    def authorization(self, admin: AdminEndpoint, right: Right) -> str | None:
        """
        As `AdminEndpoint.authorization`, with the latest configuration.

        Raises:
            NotAuthorized: the token can't be read, or no policy has the right any more.
        """
        try:
            return attrs.evolve(admin, config=self.config).authorization(right)
        except Failure as failure:
            raise NotAuthorized(str(failure)) from failure

    def reload(self, loaded: Loaded) -> None:
        """Use the keys of that configuration. Without one that has the right, the old one stays."""
        self.config = loaded.config
        for each in self._reached:
            try:
                policy = policy_with(self.config, each.name, each.right)
            except Failure as failure:
                self.observer.report(Doubtful(text=str(failure)))
            else:
                each.broker.replace_key(policy.name, policy.keys[0])
