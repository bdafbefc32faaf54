"""Events about clients: connections, and refused credentials."""

import attrs

from gateway.domain.events.gateway import Event


@attrs.frozen(kw_only=True)
class CredentialsRefused(Event):
    """A client's credentials were refused. Repeated refusals are reported as one event."""

    protocol: str  # of the endpoint, as the configuration names it
    peer: str  # the client's address; empty: not known, or several
    # Of the policy or account that the client claims, or its certificate's subject; empty: as
    # `peer`.
    name: str
    reason: str  # the value of a `Refusal`
    times: int


@attrs.frozen(kw_only=True)
class ConnectionOpened(Event):
    """A client has connected."""

    protocol: str
    peer: str  # host:port


@attrs.frozen(kw_only=True)
class ConnectionClosed(Event):
    """A client's connection has ended, for whatever reason."""

    protocol: str
    peer: str  # host:port
    seconds: float  # the duration of the connection
