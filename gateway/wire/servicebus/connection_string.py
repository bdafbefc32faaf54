"""
Connection strings of Service Bus.

    Endpoint=sb://HOST[:PORT]/;SharedAccessKeyName=NAME;SharedAccessKey=KEY[;EntityPath=...]
    Endpoint=sb://HOST[:PORT]/          with a credential that isn't a key
"""

from typing import Final

import attrs

from gateway.domain.errors import InvalidRequest
from gateway.wire.http.hosts import split_url

_KNOWN: Final = {
    "endpoint": "Endpoint",
    "sharedaccesskeyname": "SharedAccessKeyName",
    "sharedaccesskey": "SharedAccessKey",
    "entitypath": "EntityPath",
    "usedevelopmentemulator": "UseDevelopmentEmulator",
}


@attrs.frozen(kw_only=True)
class ConnectionString:
    """The parts of a connection string. `plain`: without TLS, as for the emulator."""

    host: str
    port: int | None
    key_name: str  # empty: not accessed by a key
    key: str = attrs.field(repr=False)  # empty: configured elsewhere
    plain: bool = False

    @property
    def authority(self) -> str:
        """Host and port as in a URL."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port is None else f"{host}:{self.port}"


def parse_connection_string(text: str) -> ConnectionString:
    """
    Parse a connection string; keys in any order and case.

    Raises:
        InvalidRequest: a part is missing, unknown, or given twice. The text contains no secret.
    """
    parts: dict[str, str] = {}
    for part in filter(None, text.strip().split(";")):
        name, equals, value = part.partition("=")
        name = name.strip().lower()
        if not equals or name not in _KNOWN:
            known = ", ".join(_KNOWN.values())
            raise InvalidRequest(f"connection string: NAME=VALUE expected, NAME one of {known}")
        if name in parts:
            raise InvalidRequest(f"connection string: {_KNOWN[name]} is given twice")
        parts[name] = value.strip()
    if not parts.get("endpoint"):
        raise InvalidRequest("connection string: Endpoint is missing")
    host, port = _location(parts["endpoint"])
    return ConnectionString(
        host=host,
        port=port,
        key_name=parts.get("sharedaccesskeyname", ""),
        key=parts.get("sharedaccesskey", ""),
        plain=parts.get("usedevelopmentemulator", "").lower() == "true",
    )


def _location(endpoint: str) -> tuple[str, int | None]:
    try:
        url = split_url(endpoint)
    except ValueError as error:
        raise InvalidRequest(f"connection string: Endpoint: {error}") from error
    host = url.hostname
    if not host or url.path not in {"", "/"} or url.query or url.fragment or "@" in url.netloc:
        raise InvalidRequest("connection string: Endpoint=sb://HOST[:PORT]/ expected")
    return host, url.port
