"""Expiry dates of the certificates that the configuration names."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from gateway.config.options import Config
from gateway.domain.status import Expiry
from gateway.net.tls import ClientTlsOptions, TlsOptions, expiry_of

_AUTHORITIES: Final = frozenset({"ca", "client_ca"})


def read_expiries(config: Config, process: str) -> tuple[Expiry, ...]:
    """
    The ends of the certificates of namespaces, and of the endpoints of such a process, as their
    files are now; a process that is starting loads the same. Of a chain the first to end counts, of
    authorities the last. A file that can't be read is left out.
    """
    return tuple(_found(config, process))


def _found(config: Config, process: str) -> Iterator[Expiry]:
    for place, options in (*_of_endpoints(config, process), *_of_namespaces(config)):
        for field in ("certificate", "ca", "client_ca"):
            file: Path | None = getattr(options, field, None)
            at = None if file is None else expiry_of(file, authorities=field in _AUTHORITIES)
            if at is not None:
                yield Expiry(setting=f"{place}.tls.{field}", file=str(file), at=at)


def _of_endpoints(config: Config, process: str) -> Iterator[tuple[str, TlsOptions]]:
    for index, endpoint in config.endpoints_of(process).items():
        if endpoint.tls is not None:
            yield f"endpoints[{index}]", endpoint.tls


def _of_namespaces(config: Config) -> Iterator[tuple[str, ClientTlsOptions]]:
    for name, namespace in config.namespaces.items():
        options = getattr(namespace.options, "tls", None)
        if isinstance(options, ClientTlsOptions):
            yield f"namespaces.{name}", options
