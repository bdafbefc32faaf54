"""An open loop of sends: they go when they are due, however long earlier ones take."""

import math
from collections import Counter
from itertools import pairwise
from typing import Final

import attrs
import trio

from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, Outcome
from gateway.domain.history import Acked, Failed, Invoked, Record, Unknown, fingerprint
from gateway.domain.message import Leg, Message
from gateway.ports import Broker

DEADLINE: Final = 12.0  # seconds: a producer's patience
WINDOW: Final = 0.1  # seconds
BODY: Final = b"x" * 1024


@attrs.frozen(kw_only=True)
class Send:
    """One send as its producer saw it. Times are Trio's; `answered` is infinite without success."""

    message_id: str
    due: float
    answered: float
    leg: Leg | None

    @property
    def latency(self) -> float:
        """From when it was due, so that one that had to wait to be sent counts in full."""
        return self.answered - self.due


@attrs.define(eq=False)
class OpenLoop:
    """Sends at a constant rate to one entity, and remembers what became of them."""

    name: str
    entity: EntityPath
    sends: list[Send] = attrs.field(factory=list)
    records: list[Record] = attrs.field(factory=list)
    stopping: bool = False
    _begun: int = attrs.field(default=0, init=False)

    @property
    def under_way(self) -> int:
        """Sends that aren't answered yet."""
        return self._begun - len(self.sends)

    async def run(self, broker: Broker, rate: float) -> None:
        """Send until `stopping`; return when the last one is answered or given up."""
        began = trio.current_time()
        number = 0
        async with trio.open_nursery() as nursery:
            while not self.stopping:
                due = began + number / rate
                await trio.sleep_until(due)
                nursery.start_soon(self._send, broker, f"{self.name}-{number}", due)
                number += 1

    async def _send(self, broker: Broker, identity: str, due: float) -> None:
        self._begun += 1
        message = Message(message_id=identity, body=BODY, properties={"source": self.name})
        self.records.append(
            Invoked(
                at=trio.current_time(),
                message_id=identity,
                entity=self.entity.key,
                fingerprint=fingerprint(message),
            )
        )
        leg: Leg | None = None
        failure: type[Failed | Unknown] = Unknown
        with trio.move_on_at(due + DEADLINE):
            try:
                leg = await broker.send(self.entity, [message])
            except BrokerError as error:
                failure = Unknown if error.outcome is Outcome.UNKNOWN else Failed
        now = trio.current_time()
        if leg is None:
            self.records.append(failure(at=now, message_id=identity))
        else:
            self.records.append(Acked(at=now, message_id=identity, leg=leg))
        answered = math.inf if leg is None else now
        self.sends.append(Send(message_id=identity, due=due, answered=answered, leg=leg))


@attrs.frozen(kw_only=True)
class Service:
    """How well a loop's producer was served. Times are seconds."""

    sent: int
    acknowledged: int
    available: float  # share of the windows with an answered send
    longest_stall: float  # without any answered send
    p50: float
    worst: float  # of those that were answered
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
    diverted = [send.answered for send in sends if send.leg not in {None, Leg.PRIMARY}]
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
