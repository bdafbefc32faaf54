"""Token requests in a thread: a hanging one takes one thread, and no other thread's place."""

import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime

import attrs
import pytest
import trio

from gateway.brokers.entra.options import CredentialKind, CredentialOptions
from gateway.brokers.entra.requesting import TokenRequests
from gateway.brokers.entra.tokens import AccessToken
from gateway.domain.errors import CredentialRefused, NoToken
from tests.harness.patience import PATIENCE

OPTIONS = CredentialOptions(kind=CredentialKind.MANAGED_IDENTITY)
TOKEN = AccessToken(text="x", expires=datetime(2026, 1, 1, tzinfo=UTC))


@attrs.define(eq=False)
class Hanging:
    """A request that hangs until the test ends."""

    over: threading.Event = attrs.field(factory=threading.Event)
    entered: int = 0

    def request(self, options: CredentialOptions, scope: str) -> AccessToken:
        self.entered += 1
        self.over.wait(60)
        return TOKEN


@pytest.fixture
def hanging() -> Iterator[Hanging]:
    found = Hanging()
    yield found
    found.over.set()


async def test_a_request_that_hangs_is_given_up_and_takes_one_thread_only(
    hanging: Hanging,
) -> None:
    requests = TokenRequests(options=OPTIONS, scope="s", longest=0.05, blocking=hanging.request)
    for _ in range(3):
        with trio.fail_after(PATIENCE), pytest.raises(NoToken, match=r"within 0\.05 s"):
            await requests.request()

    assert hanging.entered == 1
    assert trio.to_thread.current_default_thread_limiter().borrowed_tokens == 0
    hanging.over.set()
    found: AccessToken | None = None
    with trio.fail_after(PATIENCE):
        while found is None:  # until the thread has ended
            with suppress(NoToken):
                found = await requests.request()
    assert found is TOKEN


async def test_an_incomplete_installation_is_told_as_a_refusal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "gateway.brokers.entra.azure_identity", None)
    requests = TokenRequests(options=OPTIONS, scope="s")

    with pytest.raises(CredentialRefused, match=r"pip install 'azure-identity"):
        await requests.request()


async def test_a_cancelled_request_returns_at_once(hanging: Hanging) -> None:
    requests = TokenRequests(options=OPTIONS, scope="s", blocking=hanging.request)
    with trio.fail_after(PATIENCE):
        with trio.move_on_after(0.05) as limit:
            await requests.request()

    assert limit.cancelled_caught
