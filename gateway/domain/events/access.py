"""Events about access: connections, credentials of clients and of namespaces, and certificates."""

import attrs

from gateway.domain.events.gateway import Event


@attrs.frozen(kw_only=True)
class CredentialsRefused(Event):
    """A client's credentials were refused. Repeated refusals are reported as one event."""

    level = "warning"

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

    level = "debug"

    protocol: str
    peer: str  # host:port


@attrs.frozen(kw_only=True)
class ConnectionClosed(Event):
    """A client's connection has ended, for whatever reason."""

    level = "debug"

    protocol: str
    peer: str  # host:port
    seconds: float  # the duration of the connection


@attrs.frozen(kw_only=True)
class CertificatesLoaded(Event):
    """Changed files of certificates are in use from now on; connections that are open stay so."""

    setting: str  # of the configuration: endpoints[0].tls
    certificate: str  # subject, serial and expiry of what the process shows, or of what it trusts


@attrs.frozen(kw_only=True)
class CertificatesRefused(Event):
    """Changed files of certificates can't be used: the previous ones stay in use."""

    level = "warning"

    setting: str  # of the file at fault: endpoints[0].tls.key
    reason: str


@attrs.frozen(kw_only=True)
class CertificateExpires(Event):
    """A certificate or a revocation list expires soon, or has expired (`days` is 0)."""

    level = "warning"

    setting: str
    file: str
    certificate: str  # subject, serial and expiry
    days: float  # that are left


@attrs.frozen(kw_only=True)
class IssuerKeysRead(Event):
    """The keys of an identity provider were read for the first time, or have changed."""

    issuer: str  # its name in the configuration
    keys: int  # that can verify tokens now
    added: int
    removed: int  # tokens signed by these aren't valid any more


@attrs.frozen(kw_only=True)
class IssuerUnavailable(Event):
    """
    The keys of an identity provider can't be read. Those that were read before stay in use; without
    any, its tokens are refused as a temporary failure.
    """

    level = "warning"

    issuer: str  # its name in the configuration
    reason: str
    keys: int  # that stay in use


@attrs.frozen(kw_only=True)
class TokenRequestFailed(Event):
    """
    The identity provider gave no access token. `good_for`: the seconds for which the last token
    is still good; 0: there is none, and the namespace can't be used.
    """

    level = "warning"
    same = ("namespace", "reason")

    namespace: str
    reason: str
    good_for: float


@attrs.frozen(kw_only=True)
class TokenRegained(Event):
    """The identity provider gave an access token again, after `seconds` of failures."""

    namespace: str
    seconds: float
