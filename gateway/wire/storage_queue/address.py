"""
The address of a request to the Queue service: its account, and the queue or message in it.

    http://127.0.0.1:10001/contoso/orders/messages      path style, as the emulators have it
    https://contoso.queue.core.windows.net/orders       host style
    ...contoso-secondary...                             the account's secondary, which is read-only
"""

import functools
from collections.abc import Collection, Mapping, Sequence
from typing import Final
from urllib.parse import quote, unquote

import attrs

from gateway.wire.http.messages import Request
from gateway.wire.storage_queue.errors import StorageRefusal

SECONDARY: Final = "-secondary"
_MESSAGES: Final = "messages"


@attrs.frozen(kw_only=True)
class Address:
    """
    `endpoint` is the URL of the account, as the client wrote it, without a slash at its end; `path`
    has the segments after it, decoded.
    """

    account: str
    is_secondary: bool = False
    endpoint: str
    path: tuple[str, ...] = ()

    @property
    def queue(self) -> str | None:
        return self.path[0] if self.path else None

    @property
    def of_messages(self) -> bool:
        """True if the address is that of a queue's messages, or of one message."""
        return len(self.path) in {2, 3} and self.path[1].lower() == _MESSAGES

    @property
    def message_id(self) -> str | None:
        return self.path[2] if len(self.path) == 3 else None


def locate(request: Request, accounts: Collection[str], *, secure: bool) -> Address:
    """
    Find the account, by the host's first label or else by the path's first segment.

    Raises:
        StorageRefusal: ResourceNotFound: there is no such account; InvalidUri: none is named.
    """
    raw = request.target.partition("?")[0].strip("/")
    segments = raw.split("/") if raw else []
    host = request.headers.get("Host") or ""
    origin = f"{'https' if secure else 'http'}://{host}"
    label, dot, _ = host.partition(".")
    name, is_secondary = _account(label.lower())
    if not dot or name not in accounts:
        if not segments:
            raise StorageRefusal("InvalidUri", "The account is missing in the path.")
        first = segments.pop(0)
        name, is_secondary = _account(unquote(first))
        origin = f"{origin}/{first}"
    if name not in accounts:
        raise StorageRefusal("ResourceNotFound", "There is no such account.")
    return Address(
        account=name,
        is_secondary=is_secondary,
        endpoint=origin,
        path=tuple(unquote(segment) for segment in segments),
    )


@functools.lru_cache(maxsize=16)  # each request is parsed in several places
def parameters_of(target: str) -> Mapping[str, Sequence[str]]:
    """
    The values of each parameter by its name in lower case, decoded.

    A plus sign stands for itself: only percent-encoding is decoded.
    """
    found: dict[str, list[str]] = {}
    for part in target.partition("?")[2].split("&"):
        name, _, value = part.partition("=")
        if name:
            found.setdefault(unquote(name).lower(), []).append(unquote(value))
    return found


def build_target(*path: str, **parameters: str | int | None) -> str:
    """The target below an account's URL; parameters that are None are omitted."""
    target = "".join(f"/{quote(segment, safe='')}" for segment in path) or "/"
    given = [f"{n}={quote(str(v), safe='')}" for n, v in parameters.items() if v is not None]
    return f"{target}?{'&'.join(given)}" if given else target


def _account(name: str) -> tuple[str, bool]:
    return name.removesuffix(SECONDARY), name.endswith(SECONDARY)
