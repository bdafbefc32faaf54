"""Events about the access tokens with which a namespace is accessed."""

import attrs

from gateway.domain.events.gateway import Event


@attrs.frozen(kw_only=True)
class TokenRequestFailed(Event):
    """
    The identity provider gave no access token. `good_for`: the seconds for which the last token
    is still good; 0: there is none, and the namespace can't be used.
    """

    namespace: str
    reason: str
    good_for: float


@attrs.frozen(kw_only=True)
class TokenRegained(Event):
    """The identity provider gave an access token again, after `seconds` of failures."""

    namespace: str
    seconds: float
