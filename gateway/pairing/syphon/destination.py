"""
The primary that messages are meant for: the fingerprint in envelopes, and whether a backlog message
was meant for this primary.

The primary reports its identity. Its address is used until it has done so for the first time. The
last identity survives a restart in the state file, so that a gateway which starts in an outage
still knows it.
"""

import random
from contextlib import suppress
from typing import Final

import attrs
import trio

from gateway.capabilities import Identifies
from gateway.changes import Changes
from gateway.domain.backoff import jittered
from gateway.domain.errors import (
    BrokerError,
    EntityNotFound,
    InvalidRequest,
    NotAuthorized,
    NotSupported,
)
from gateway.domain.events.gateway import PrimaryReplaced
from gateway.domain.identity import Identity, fingerprint
from gateway.offering import offered
from gateway.ports import Broker, Observer

ASK_LIMIT: Final = 10.0  # seconds for one answer
FIRST_RETRY: Final = 0.2  # seconds; doubled from one failure to the next
LAST_RETRY: Final = 5.0
ASK_AGAIN: Final = 60.0  # seconds: another namespace may have taken over that address
# Gateways that were started together, or that lost the primary together, don't ask together.
JITTER: Final = 0.2
NOT_REPORTED: Final = (NotSupported, NotAuthorized, InvalidRequest, EntityNotFound)


@attrs.define(eq=False, kw_only=True)
class Destination:
    """Tells the backlog messages that belong to `primary` from the others."""

    primary: Broker
    addresses: tuple[str, ...] = ()  # of the primary, in one form; the first is its own
    adopted: frozenset[str] = frozenset()  # fingerprints of primaries that it replaces
    takes_all: bool = False  # an operator adopted every message, whatever its fingerprint
    observer: Observer | None = None
    rng: random.Random | None = None  # None: the questions come at regular times
    identity: Identity | None = attrs.field(default=None, init=False)
    changes: Changes = attrs.field(factory=Changes, init=False)
    has_answered: bool = attrs.field(default=False, init=False)  # since this process started
    formerly: str = attrs.field(default="", init=False)  # fingerprint before the restart
    _accepted: frozenset[str] | None = attrs.field(default=None, init=False)
    _reports_none: bool = attrs.field(
        default=False, init=False
    )  # this kind of namespace reports no identity
    _ask_at: float = attrs.field(default=0.0, init=False)
    _asking: trio.Lock = attrs.field(factory=trio.Lock, init=False)

    @property
    def fingerprint(self) -> str:
        """The fingerprint of messages that are meant for the primary. Empty: not known."""
        if self.identity is not None and self.identity.is_lasting:
            return fingerprint(str(self.identity))
        return fingerprint(self.addresses[0]) if self.addresses else ""

    @property
    def is_known(self) -> bool:
        """True if the primary has reported its identity, now or earlier, or can't report one."""
        return self.takes_all or self.identity is not None or self._reports_none

    @property
    def accepted(self) -> frozenset[str]:
        """The fingerprints that stand for this primary."""
        if self._accepted is None:  # cached, as each message needs it
            own = {self.fingerprint, *map(fingerprint, self.addresses)}
            self._accepted = frozenset(own - {""}) | self.adopted
        return self._accepted

    def accepts(self, meant_for: str) -> bool:
        """True if a message with that fingerprint was meant for this primary, or may have been."""
        return self.takes_all or not meant_for or meant_for in self.accepted

    def restore(self, told: Identity | None) -> None:
        """Use the identity from before a restart until the primary reports another one."""
        if told is None or self.formerly:
            return
        self.formerly = fingerprint(str(told))
        now, self.identity, self._accepted = self.identity, told, None
        if now is not None:  # the primary has answered already
            self._update(now)

    async def ask(self) -> None:
        """
        Ask the primary for its identity.

        Raises:
            BrokerError: the primary doesn't answer.
        """
        self._ask_at = trio.current_time() + self._jittered(ASK_AGAIN)
        identifies = offered(self.primary, Identifies)
        if identifies is None:
            self._reports_none = self.has_answered = True
            return
        try:
            told = await identifies.identity()
        except NOT_REPORTED:
            self._reports_none = True
        else:
            self._update(told)
        self.has_answered = True

    async def refresh(self) -> None:
        """Ask again if the last question is `ASK_AGAIN` ago. Errors are ignored."""
        if self._reports_none or trio.current_time() < self._ask_at:
            return
        async with self._asking:
            with trio.move_on_after(ASK_LIMIT), suppress(BrokerError):
                await self.ask()

    async def wait_known(self) -> None:
        """Return once `is_known`; ask the primary until it answers."""
        async with self._asking:
            pause = FIRST_RETRY
            while not self.is_known:
                with trio.move_on_after(ASK_LIMIT), suppress(BrokerError):
                    await self.ask()
                    return
                await trio.sleep(self._jittered(pause))
                pause = min(2 * pause, LAST_RETRY)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """
        Ask for the primary's identity until cancelled, and report when it changes. Return if the
        primary reports none.
        """
        task_status.started()
        await self.wait_known()
        while not self._reports_none:
            await trio.sleep_until(self._ask_at)
            await self.refresh()

    def _jittered(self, seconds: float) -> float:
        return seconds if self.rng is None else jittered(seconds, JITTER, self.rng)

    def _update(self, told: Identity) -> None:
        was = self.identity
        if told == was:
            return
        self.identity, self._accepted = told, None
        self.changes.notify()
        if was is None or not was.is_lasting or self.observer is None:
            return
        self.observer.report(
            PrimaryReplaced(
                was=fingerprint(str(was)), now=fingerprint(str(told)), identity=str(told)
            )
        )
