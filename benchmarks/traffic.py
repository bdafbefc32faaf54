"""An open loop of sends: they go when they are due, however long earlier ones take."""

import math
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence, Set
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Final

import attrs
import trio

from gateway.capabilities.sending import accepting_send
from gateway.checker.operations import Acked, Failed, Invoked, Record, Unknown, fingerprint
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, Outcome
from gateway.domain.message import AcceptedBy, Message
from gateway.ports import Broker

DEADLINE: Final = 12.0  # seconds: the patience of a producer, by default
WINDOW: Final = 0.1  # seconds
BODY: Final = b"x" * 1024
LATER: Final = 10  # where some messages are scheduled: the distance from one to the next


Accepting = Callable[[EntityPath, Sequence[Message]], Awaitable[AcceptedBy | None]]
"""A send; it returns who accepted the messages, if the answer says so."""


@attrs.frozen(kw_only=True)
class Send:
    """A send as its producer saw it. Times are Trio's; `answered` is infinite without success."""

    message_id: str
    due: float
    answered: float
    accepted_by: AcceptedBy | None  # None: the answer doesn't say, or there was none

    @property
    def latency(self) -> float:
        """
        The seconds since the send was due, so that the wait before a late send counts in full.
        """
        return self.answered - self.due


@attrs.define(eq=False)
class OpenLoop:
    """Sends at a constant rate to one entity, and remembers the result of each send."""

    name: str
    entity: EntityPath
    time_to_live: float | None = None  # seconds, of each message
    scheduled: float | None = None  # seconds after which every tenth message is due
    deadline: float = DEADLINE  # seconds: a send without an answer is given up then
    sessions: int = 0  # among which the messages are dealt out; 0: they have none
    sends: list[Send] = attrs.field(factory=list)
    records: list[Record] = attrs.field(factory=list)
    dated: set[str] = attrs.field(factory=set)  # the messages that are scheduled
    stopping: bool = False
    _begun: int = attrs.field(default=0, init=False)

    @property
    def under_way(self) -> int:
        """Sends that aren't answered yet."""
        return self._begun - len(self.sends)

    async def run(self, broker: Broker, rate: float, phase: float = 0.0) -> None:
        """As `run_by`, by a broker."""
        await self.run_by(accepting_send(broker), rate, phase)

    async def run_by(self, send: Accepting, rate: float, phase: float = 0.0) -> None:
        """
        Send until `stopping`; return when the last one is answered or given up.

        The first send is due after that share of the pause between two sends.
        """
        began = trio.current_time() + phase / rate
        number = 0
        async with trio.open_nursery() as nursery:
            while not self.stopping:
                due = began + number / rate
                await trio.sleep_until(due)
                later = self.scheduled if number % LATER == LATER - 1 else None
                session = f"s{number % self.sessions}" if self.sessions else None
                identity = f"{self.name}-{number}"
                nursery.start_soon(self._send, send, identity, due, later, session)
                number += 1

    async def _send(
        self, send: Accepting, identity: str, due: float, later: float | None, session: str | None
    ) -> None:
        self._begun += 1
        now = trio.current_time()
        life = self.time_to_live
        if later is not None:
            self.dated.add(identity)
        message = Message(
            message_id=identity,
            session_id=session,
            body=BODY,
            properties={"source": self.name},
            time_to_live=None if life is None else timedelta(seconds=life),
            scheduled=None if later is None else datetime.now(UTC) + timedelta(seconds=later),
        )
        self.records.append(
            Invoked(
                at=now,
                message_id=identity,
                entity=self.entity.key,
                fingerprint=fingerprint(message),
                expires=math.inf if life is None else now + (later or 0.0) + life,
                not_before=-math.inf if later is None else now + later,
                due=due,
            )
        )
        accepted_by: AcceptedBy | None = None
        failure: type[Failed | Unknown] | None = Unknown
        with trio.move_on_at(due + self.deadline):
            try:
                accepted_by, failure = await send(self.entity, [message]), None
            except BrokerError as error:
                failure = Unknown if error.outcome is Outcome.UNKNOWN else Failed
        now = trio.current_time()
        if failure is not None:
            self.records.append(failure(at=now, message_id=identity))
        else:
            self.records.append(Acked(at=now, message_id=identity, accepted_by=accepted_by))
        answered = now if failure is None else math.inf
        self.sends.append(
            Send(message_id=identity, due=due, answered=answered, accepted_by=accepted_by)
        )

    def note_acceptors(self, diverted: Set[str]) -> None:
        """Note that the backlog has accepted those, and the primary all others."""

        def by(message: str) -> AcceptedBy:
            return AcceptedBy.BACKLOG if message in diverted else AcceptedBy.PRIMARY

        self.sends = [
            attrs.evolve(each, accepted_by=by(each.message_id))
            if math.isfinite(each.answered)
            else each
            for each in self.sends
        ]
        self.records = [
            attrs.evolve(each, accepted_by=by(each.message_id)) if isinstance(each, Acked) else each
            for each in self.records
        ]


@attrs.frozen(kw_only=True)
class Service:
    """The service that a loop's producer had. Times are seconds."""

    sent: int
    acknowledged: int
    available: float  # share of the windows with an answered send
    longest_stall: float  # without any answered send
    p50: float
    worst: float  # of the sends that were answered
    diverted: int
    first_diverted: float | None  # answered so long after the outage began

    @property
    def share(self) -> float:
        return self.acknowledged / self.sent


def service_of(loop: OpenLoop, outage: float) -> Service:
    """`outage`: when it began, on Trio's clock."""
    sends = sorted(loop.sends, key=lambda send: send.due)
    answered = sorted(send.answered for send in sends if send.answered < math.inf)
    latencies = sorted(send.latency for send in sends if send.answered < math.inf)
    began, ended = sends[0].due, sends[-1].due
    windows = Counter(int((at - began) / WINDOW) for at in answered if at <= ended)
    moments = [began, *(at for at in answered if at < ended), ended]
    diverted = [
        send.answered for send in sends if send.accepted_by not in {None, AcceptedBy.PRIMARY}
    ]
    return Service(
        sent=len(sends),
        acknowledged=len(answered),
        available=min(1.0, len(windows) / math.ceil((ended - began) / WINDOW)),
        longest_stall=max(b - a for a, b in pairwise(moments)),
        p50=latencies[len(latencies) // 2],
        worst=latencies[-1],
        diverted=len(diverted),
        first_diverted=min(diverted) - outage if diverted else None,
    )
