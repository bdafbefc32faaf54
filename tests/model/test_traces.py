"""The simulation follows a way through the model; a planted bug leaves it."""

import attrs
import pytest

from gateway.checker.history import Attempted, DeadLettered, End, Settled, Way
from gateway.checker.operations import Acked, CopyPlace, Delivered, Failed, Found, Invoked, Unknown
from gateway.checker.verdict import EXPIRED
from tests.model.traces import deviations, followed
from tests.simulation.bugs import bug_named
from tests.simulation.caught import any_deviates
from tests.simulation.world import run_world

pytestmark = pytest.mark.slow

SEEDS = range(21)
SENT = Invoked(at=1, message_id="1", entity="orders", fingerprint="f")
ACKED = Acked(at=1, message_id="1")
FAILED = Failed(at=1, message_id="1")
UNKNOWN = Unknown(at=1, message_id="1")
CAME = Delivered(at=2, message_id="1", entity="orders", fingerprint="f", copy="1")
MORTAL = attrs.evolve(SENT, expires=9)
DEAD_LETTERED = DeadLettered(at=9, process="syphon", message_id="1", began=9)
DEAD = Found(at=9, place=CopyPlace.BACKLOG_DEAD_LETTER, queue="b", message_id="1", reason=EXPIRED)
SETTLED = Settled(at=2, process="syphon", queue="b", copy="1", message_id="1")


def attempt(way, end):
    return Attempted(
        at=1, process="p", entity="orders", message_ids=("1",), way=way, end=end, began=1
    )


TO_PRIMARY = attempt(Way.PRIMARY, End.ACCEPTED)
REFUSED = attempt(Way.PRIMARY, End.OUTAGE)
NO_ANSWER = attempt(Way.PRIMARY, End.UNKNOWN)
STORED = attempt(Way.BACKLOG, End.ACCEPTED)
MOVED = attempt(Way.SYPHON, End.ACCEPTED)
MOVED_PERHAPS = attempt(Way.SYPHON, End.UNKNOWN)

WAYS = {
    "to the primary": [SENT, TO_PRIMARY, ACKED, CAME],
    "delivered before it was answered": [SENT, CAME, TO_PRIMARY, ACKED],
    "by the backlog": [SENT, REFUSED, STORED, ACKED, MOVED, SETTLED, CAME],
    "moved before it was acknowledged": [SENT, STORED, MOVED, SETTLED, CAME, ACKED],
    "not sent": [SENT, REFUSED, FAILED],
    "no answer, and vanished": [SENT, NO_ANSWER, UNKNOWN],
    "no answer, and arrived late": [SENT, NO_ANSWER, STORED, ACKED, MOVED, SETTLED, CAME, CAME],
    "the transfer had no answer": [SENT, STORED, ACKED, MOVED_PERHAPS, MOVED, SETTLED, CAME],
    "the settlement was repeated": [SENT, STORED, ACKED, MOVED, CAME, SETTLED],
    "the gateway died": [SENT, UNKNOWN, NO_ANSWER, CAME],
    "the connection died": [SENT, REFUSED, UNKNOWN, NO_ANSWER, REFUSED],
    "expired on the primary": [MORTAL, TO_PRIMARY, ACKED],
    "expired on the backlog": [MORTAL, STORED, ACKED, DEAD_LETTERED, DEAD],
    "the client's connection died, and the gateway went on": [
        *(SENT, REFUSED, UNKNOWN, attempt(Way.BACKLOG, End.UNKNOWN), TO_PRIMARY, CAME),
    ],
    "its dead-lettering was repeated": [MORTAL, STORED, ACKED, DEAD_LETTERED, DEAD_LETTERED, DEAD],
    "expired, after a transfer without an answer": [
        *(MORTAL, STORED, ACKED, MOVED_PERHAPS, DEAD_LETTERED, CAME, DEAD),
    ],
    "sent again": [SENT, NO_ANSWER, UNKNOWN, SENT, REFUSED, FAILED, CAME],
}
NO_WAYS = {
    "acknowledged, and nobody has it": [SENT, REFUSED, ACKED],
    "arrived, and nobody asked the primary": [SENT, STORED, ACKED, CAME],
    "not sent, after an attempt without an answer": [SENT, NO_ANSWER, REFUSED, FAILED],
    "settled before it was moved": [SENT, STORED, ACKED, SETTLED, MOVED, CAME],
    "settled though the transfer had no answer": [SENT, STORED, ACKED, MOVED_PERHAPS, SETTLED],
    "moved, and never stored": [SENT, TO_PRIMARY, ACKED, MOVED],
    "still on the backlog": [SENT, STORED, ACKED],
    "accepted, and never came": [SENT, TO_PRIMARY, ACKED],
    "never sent": [CAME],
    "dead-lettered, and sent to live for ever": [SENT, STORED, ACKED, DEAD_LETTERED, DEAD],
    "dead-lettered, and never stored": [MORTAL, TO_PRIMARY, ACKED, DEAD_LETTERED, CAME],
    "to expire, and nobody has it": [MORTAL, REFUSED, ACKED],
    "to expire, and still on the backlog": [MORTAL, STORED, ACKED],
    "to expire, and arrived without a transfer": [MORTAL, STORED, ACKED, DEAD_LETTERED, CAME],
    "found on the backlog": [
        SENT,
        STORED,
        ACKED,
        Found(at=9, place=CopyPlace.BACKLOG, queue="b", message_id="1"),
    ],
}


@pytest.mark.parametrize("name", WAYS)
def test_a_way_of_the_model_is_followed(name):
    assert list(deviations(WAYS[name])) == []


@pytest.mark.parametrize("name", NO_WAYS)
def test_a_trace_that_is_no_way_of_the_model_is_refused(name):
    [deviation] = deviations(NO_WAYS[name])

    assert deviation.message_id == "1"


def test_every_message_of_the_simulation_follows_the_model():
    messages, found = 0, []
    for seed in SEEDS:
        records = run_world(seed).records
        messages += followed(records)
        found += [f"seed {seed}: {one}" for one in deviations(records)]

    assert found == []
    assert messages > 600


@pytest.mark.parametrize(
    "name",
    [
        "the answer goes out before a broker has it",
        "the syphon completes before the primary accepted",
        "the taint is forgotten",
        "the syphon believes",
        "no answer is success",
    ],
)
def test_a_planted_bug_deviates(name):
    bug = bug_named(name)

    assert bug.call(any_deviates, (*bug.found, *SEEDS))
