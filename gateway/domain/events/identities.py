"""Events about the identity providers whose tokens are accepted."""

import attrs

from gateway.domain.events.gateway import Event


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

    issuer: str  # its name in the configuration
    reason: str
    keys: int  # that stay in use
