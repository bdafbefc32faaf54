"""Pairs of two namespaces of any kind, and the syphons that belong to them."""

import itertools
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import attrs
import trio

from gateway.domain.envelope import Envelope, EnvelopeKey
from gateway.domain.events.gateway import Event
from gateway.pairing.additions import PairDependencies
from gateway.pairing.options import PairOptions, SyphonOptions
from gateway.pairing.pair import Pair, PairParts
from gateway.pairing.provision import provision, usable_backlog
from gateway.pairing.syphon.syphon import Syphon
from gateway.ports import Broker, WallClock
from gateway.wire.amqp.message import encode_sorted, encoded_size
from gateway.wire.pairgate.encryption import MessageEncryption

LABEL: Final = "east"
BACKLOG_QUEUES: Final = 2
ENVELOPE: Final = Envelope(
    pair=LABEL,
    origin="gateway-1",
    keys=(EnvelopeKey(id="1", key=b"a key of this test"),),
    encode=encode_sorted,
    encryption=MessageEncryption(random.Random(0)),
)


@attrs.frozen
class Nobody:
    """An observer that doesn't care."""

    def report(self, event: Event) -> None:
        return


@asynccontextmanager
async def pair_of(
    primary: Broker, secondary: Broker, clock: WallClock, **options: Any
) -> AsyncIterator[Pair]:
    """A pair that runs, with a backlog that it provisioned."""
    await provision(secondary, LABEL, BACKLOG_QUEUES)
    numbers = itertools.count(1)
    pair = PairParts(
        primary=primary,
        secondary=secondary,
        options=PairOptions(label=LABEL, **options),
        backlog=await usable_backlog(secondary, LABEL, BACKLOG_QUEUES),
        envelope=ENVELOPE,
        dependencies=PairDependencies(
            clock=clock,
            rng=random.Random(0),
            new_id=lambda: f"made-{next(numbers)}",
            observer=Nobody(),
            measure=encoded_size,
        ),
    ).assemble()
    async with trio.open_nursery() as nursery:
        await nursery.start(pair.run)
        yield pair
        nursery.cancel_scope.cancel()


def syphon_of(primary: Broker, secondary: Broker, clock: WallClock) -> Syphon:
    return Syphon(
        primary=primary,
        source=secondary,
        label=LABEL,
        options=SyphonOptions(),
        envelope=ENVELOPE,
        clock=clock,
        rng=random.Random(0),
        observer=Nobody(),
    )
