"""Searches a message in the queues of both namespaces, without locking it."""

from collections.abc import Mapping, Sequence
from typing import Final

import trio

from gateway.capabilities import Peeks
from gateway.domain.entity import EntityPath
from gateway.domain.envelope_fields import text_of_id
from gateway.domain.errors import BrokerError
from gateway.domain.message import Message
from gateway.extensions.ledger.facts import PairSide, Searched, Seen
from gateway.extensions.ledger.recorder import Identify
from gateway.offering import offered
from gateway.ports import Broker

MOST: Final = 1_000  # messages of a queue that are looked at: a second over AMQP
PAGE: Final = 100  # messages of one request
SECONDS: Final = 5.0  # for all queues: less than a client waits for the answer


async def search(
    namespaces: Mapping[PairSide, Broker],
    message: str,
    queues: Sequence[tuple[PairSide, EntityPath]],
    identify: Identify,
) -> tuple[tuple[Seen, ...], tuple[Searched, ...]]:
    """
    Search the message of that id in these queues, in both namespaces at once: one may be frozen.
    A queue that can't be searched within `SECONDS` has its reason in `Searched.why`.
    """
    seen: list[Seen] = []
    searched: list[Searched] = []

    async def search_side(side: PairSide) -> None:
        for queue in (path for each, path in queues if each is side):
            why = "not in time"
            with trio.move_on_at(deadline):
                why = await _search_one(namespaces[side], side, queue, message, identify, seen)
            searched.append(Searched(side=side, queue=str(queue), whole=not why, why=why))

    deadline = trio.current_time() + SECONDS
    async with trio.open_nursery() as nursery:
        for side in namespaces:
            nursery.start_soon(search_side, side)
    return tuple(seen), tuple(searched)


async def _search_one(
    broker: Broker,
    side: PairSide,
    queue: EntityPath,
    message: str,
    identify: Identify,
    seen: list[Seen],
) -> str:
    """The reason why not the whole queue was searched; empty: it was."""
    peeks = offered(broker, Peeks)
    if peeks is None:
        return "this namespace shows no messages"
    number = looked = 0
    while looked < MOST:
        try:
            page = await peeks.peek(queue, from_sequence=number, limit=PAGE)
        except BrokerError as error:
            return str(error)
        if not page:
            return ""
        looked += len(page)
        number = page[-1].sequence_number + 1
        seen += (
            Seen(
                side=side,
                queue=str(queue),
                state=each.state.value,
                number=each.sequence_number,
                deliveries=each.delivery_count,
                since=each.enqueued,
            )
            for each in page
            if _id_of(each.message, side, identify) == message
        )
    return f"only its first {looked} messages"


def _id_of(message: Message, side: PairSide, identify: Identify) -> str:
    if side is PairSide.PRIMARY:
        return text_of_id(message.message_id)
    found = identify(message)
    return "" if found is None else found[0]
