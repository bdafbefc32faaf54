"""Where a request or a message needs a thread, and none can be started, that is an outage."""

import errno
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
import trio

from gateway.brokers.entra.options import CredentialKind, CredentialOptions
from gateway.brokers.entra.requesting import TokenRequests
from gateway.brokers.entra.tokens import AccessToken
from gateway.domain.entity import EntityPath
from gateway.domain.errors import GatewayError, NoToken, Unavailable, starting_thread
from gateway.domain.message import Delivery, Message
from gateway.extensions.claims.compression import INLINE, in_thread
from gateway.listening import EndpointDown, Item
from gateway.listening.handlers import handler_of
from gateway.listening.stores.folder import FolderValues

NO_THREAD = "can't start new thread"
MESSAGE = Message(body=b"x")
ITEM = Item(
    value=MESSAGE,
    delivery=Delivery(message=MESSAGE, sequence_number=1),
    queue=EntityPath("orders"),
)
Need = Callable[[Path], Awaitable[object]]


async def compress(_: Path) -> None:
    await in_thread(INLINE + 1, bytes)


async def read_value(folder: Path) -> None:
    await FolderValues(folder).read("key")


async def ask_for_token(_: Path) -> None:
    token = AccessToken(text="x", expires=datetime(2026, 1, 1, tzinfo=UTC))
    options = CredentialOptions(kind=CredentialKind.MANAGED_IDENTITY)
    await TokenRequests(options=options, scope="scope", blocking=lambda *_: token).request()


async def handle(_: Path) -> None:
    await handler_of(ignore, threads=1)(ITEM)


def ignore(_: Item[Message]) -> None:
    """Do nothing."""


@pytest.mark.parametrize(
    ("need", "error"),
    [
        (compress, Unavailable),
        (read_value, Unavailable),
        (ask_for_token, NoToken),
        (handle, EndpointDown),
    ],
)
async def test_no_thread_is_an_outage_and_no_fault_of_the_message(
    need: Need, error: type[GatewayError], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object, **__: object) -> None:
        await trio.lowlevel.checkpoint()
        raise RuntimeError(NO_THREAD)

    await need(tmp_path)
    monkeypatch.setattr(trio.to_thread, "run_sync", refuse)

    with pytest.raises(error, match=NO_THREAD) as found:
        await need(tmp_path)
    assert type(found.value) is error


def test_only_the_lack_of_a_thread_is_a_lack_of_resources() -> None:
    with (
        pytest.raises(OSError, match=f"look up: {NO_THREAD}") as found,
        starting_thread("look up: "),
    ):
        raise RuntimeError(NO_THREAD)
    assert found.value.errno == errno.EAGAIN

    for other in (RuntimeError("something else"), RecursionError(NO_THREAD)):
        with pytest.raises(type(other)), starting_thread():
            raise other


async def test_an_oserror_of_a_blocking_handler_is_its_own() -> None:
    def fail(_: Item[Message]) -> None:
        raise FileNotFoundError("data.csv")

    with pytest.raises(FileNotFoundError):
        await handler_of(fail, threads=1)(ITEM)
