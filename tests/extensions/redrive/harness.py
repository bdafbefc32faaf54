"""Dead letters of the backlog in memory, and their redrive."""

from datetime import timedelta

import attrs

from gateway.domain import backlog
from gateway.domain.entity import EntityPath
from gateway.domain.message import DeadLetter
from gateway.extensions.redrive.order import Selection
from gateway.extensions.redrive.redrive import Redrive
from tests.harness.faults import Operation
from tests.pairing.harness import LABEL, ORDERS, QUEUE, envelope

DEAD = QUEUE.dead_letter
EVERYTHING = Selection()
SHORT = backlog.queue_name(LABEL, 1)  # a queue with a lock of two seconds
EXPIRED = "TTLExpiredException"
SEND, SETTLE = Operation.SEND, Operation.SETTLE
NOWHERE = EntityPath("nowhere")


def redrive_of(harness, *, codec=None, source=None, deducts=True):
    return Redrive(
        source=source or harness.secondary.broker,
        label=LABEL,
        queues=1,
        envelope=codec or envelope(),
        deducts=deducts,
        clock=harness.clock,
        new_id=harness.new_id,
        observer=harness.events,
    )


async def run(harness, selection=EVERYTHING, *, rate=None, reason="", **settings):
    return await redrive_of(harness, **settings).run(
        selection, add=lambda _: None, rate=rate, reason=reason
    )


async def bury(harness, *messages, entity=ORDERS, reason="EntityNotFound", codec=None, queue=QUEUE):
    """Put diverted messages among the dead letters, as a syphon does."""
    if queue == SHORT:
        properties = attrs.evolve(backlog.QUEUE_PROPERTIES, lock_duration=timedelta(seconds=2))
        await harness.secondary.store.create_queue(SHORT, properties)
    await harness.divert(*messages, entity=entity, queue=queue, envelope=codec or envelope())
    async with harness.secondary.store.open_receiver(queue) as receiver:
        for delivery in await receiver.receive(len(messages)):
            await receiver.settle(delivery, DeadLetter(reason=reason))


def rows(survey):
    return {(group.reason, group.entity): (group.messages, group.moves) for group in survey.groups}
