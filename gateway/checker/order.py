"""
S13: sends of one key first arrive in the order in which they were acknowledged.

The place of a message among those of its entity is the smallest number of its copies there: a
namespace numbers messages as it accepts them, and a consumer may receive them in another order when
locks expire. Where copies have no numbers, the place is the time of the first delivery.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from math import inf

import attrs

from gateway.checker.history import Run
from gateway.checker.judgements import Decision, Invariant, decide
from gateway.checker.operations import Acked, CopyPlace, Delivered, Found, Invoked


@attrs.define(eq=False)
class _Sent:
    """The sends of one message. A message that was never acknowledged binds no other."""

    message_id: str
    invoked: float
    place: float
    acked: float = inf


def order_kept(run: Run) -> Decision:
    """
    A send that began after another of its key was acknowledged isn't first on the primary.

    Messages that were sent at once have no order, and neither have those with a scheduled date.
    """
    places = _places(run)
    by_key: dict[tuple[str, str], dict[str, _Sent]] = defaultdict(dict)
    sent: dict[str, _Sent] = {}
    for record in run.all(Invoked):
        place = places.get((record.entity, record.message_id))
        if record.order and place is not None and record.not_before == -inf:
            new = _Sent(record.message_id, record.at, place)
            sent[record.message_id] = by_key[record.entity, record.order].setdefault(
                record.message_id, new
            )
    for acked in run.all(Acked):
        if acked.message_id in sent:
            one = sent[acked.message_id]
            one.acked = min(one.acked, acked.at)
    judged, problems = 0, list[str]()
    for (entity, key), messages in by_key.items():
        judged += len(messages) > 1
        found = _overtaken(list(messages.values()))
        problems += [f"{entity}, key {key!r}: {text}" for text in found]
    return decide(Invariant.S13, judged, problems)


def _overtaken(messages: Sequence[_Sent]) -> Iterator[str]:
    """Each message that came before one which was acknowledged when its send began."""
    acked = sorted((one for one in messages if one.acked < inf), key=lambda one: one.acked)
    last: _Sent | None = None  # of the messages that were acknowledged before: the last to arrive
    index = 0
    for one in sorted(messages, key=lambda one: one.invoked):
        while index < len(acked) and acked[index].acked < one.invoked:
            if last is None or acked[index].place > last.place:
                last = acked[index]
            index += 1
        if last is not None and one.place < last.place:
            yield (
                f"{one.message_id}, sent at {one.invoked:.3f}, arrived before {last.message_id},"
                f" acknowledged at {last.acked:.3f}"
            )


def _places(run: Run) -> dict[tuple[str, str], float]:
    """The place of each message on its entity."""
    copies = [(one.entity, one.message_id, one.copy, one.at) for one in run.all(Delivered)]
    copies += [
        (one.queue, one.message_id, one.copy, one.at)
        for one in run.all(Found)
        if one.place is CopyPlace.PRIMARY
    ]
    unnumbered = {entity for entity, _, copy, _ in copies if not copy.isdecimal()}
    places: dict[tuple[str, str], float] = {}
    for entity, message_id, copy, at in copies:
        place = at if entity in unnumbered else float(copy)
        key = entity, message_id
        places[key] = min(places.get(key, inf), place)
    return places
