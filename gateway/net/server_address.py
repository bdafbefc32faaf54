"""The address of a server, with what a client needs to connect to it."""

import ssl

import attrs


@attrs.frozen(kw_only=True)
class ServerAddress:
    """
    The address of a server. With `tls`, its certificate must be for the host. With `unix`, it
    listens on a Unix socket with that path, and `host` is its name in requests only.
    """

    host: str
    port: int
    tls: ssl.SSLContext | None = None
    unix: str | None = None

    def __str__(self) -> str:
        return self.authority if self.unix is None else f"unix:{self.unix}"

    @property
    def authority(self) -> str:
        """The host and the port, as requests name them."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
