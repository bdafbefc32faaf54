"""Events about the files of certificates."""

import attrs

from gateway.domain.events.gateway import Event


@attrs.frozen(kw_only=True)
class CertificatesLoaded(Event):
    """Changed files of certificates are in use from now on; connections that are open stay so."""

    setting: str  # of the configuration: endpoints[0].tls
    certificate: str  # subject, serial and expiry of what the process shows, or of what it trusts


@attrs.frozen(kw_only=True)
class CertificatesRefused(Event):
    """Changed files of certificates can't be used: the previous ones stay in use."""

    setting: str  # of the file at fault: endpoints[0].tls.key
    reason: str


@attrs.frozen(kw_only=True)
class CertificateExpires(Event):
    """A certificate or a revocation list expires soon, or has expired (`days` is 0)."""

    setting: str
    file: str
    certificate: str  # subject, serial and expiry
    days: float  # that are left
