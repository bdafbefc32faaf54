"""Twenty simulated hours with faults, each run judged at its end."""

import json
import os
from collections import Counter

import attrs
import pytest

from gateway.checker.history import Attempted, End, Way
from gateway.checker.judgements import Invariant, Validity
from tests.simulation.bugs import COME_BACK, IN_ORDER, LEAST_RUNS, PUBLISHED, TAKEN_IN_PIECES
from tests.simulation.coverage import SOMETIMES, unseen
from tests.simulation.runs import run_hours
from tests.simulation.scenario import Front, Parts
from tests.simulation.seeds import draw
from tests.simulation.world import run_scenario, run_world

pytestmark = pytest.mark.slow

HOURS = 5.0
# Each is a test of half a minute, for a run on all processors; `make sim` has as many as you like.
PARTS = 4
STEP = 100  # between the first seeds of two parts: more than a part runs
REGRESSIONS = [
    140,  # an attempt of 2 ms was taken for an outage, as the difference of two times is rounded
    3133,  # L5: each of several sends was told in time that its outcome is unknown, as asked for
    30432,  # S6: at the end of a pause an answer and the end of the waiting for it came at once
    174462,  # four pauses, each too short to be noticed, added up to an outage
    21170039,  # S12: a clock was wrong while the machine stood still, and nobody looked at it
    200312,  # S4: three pauses, one after the other, kept a request from the namespace
    10000400056,  # S4: a message went along with an earlier one of its key, and died with it
    10000400133,  # L5: the secondary failed while keys were away, and the primary had come back
    7079,  # L4: one entity without answers was a lost primary to a syphon that knew no other
    7754,  # L4: as 7079
    8077,  # S10: a trial of the gateway's own syphon had failed, and its send went on
    9276,  # S9: as 8077
    40000000101,  # "after 1 probes": a send that was late was given up a moment after that
    10577,  # S4: unrounded, two dates differed by a bit more than the tolerance
]
HEAVY_REGRESSIONS = [
    3010249,  # tokens that a wrong clock had dropped weren't put again
    3040087,  # S12: two steps of a clock at which nobody had looked in between were none
    3050286,  # S4: a scheduled date has milliseconds, and a life that is counted from it too
    3060260,  # Storage Queue's last try of a put was cut off at once, and taken for an outage
    4140265,  # L3: by a clock that was ahead, messages at rest weren't locked, nor given back
    5000283,  # a store marked what it found, which a power cut took: a sync of it had failed
    5020377,  # L4: as 4140265
    6030407,  # L5: clients wait for 4 s, which is all that the primary's attempt takes
    6280203,  # L2: what a gateway told after its death was taken for the next life's
    6320418,  # "stays": as 7070231
    7070231,  # "stays": attempts that were cut off at once needn't count
    7150389,  # S10: an attempt that was cut off at once had begun a new streak
    9010204,  # S10: an attempt that ended with its send's whole time didn't count
    40820354,  # L3: completed one by one, twenty took longer than a syphon waits for
    45020678,  # L3: between two looks the backlog had become empty, which nobody noted
    50030061,  # failed and stays: a killed gateway saved what nobody had been told
    43270634,  # L5: a send still waited, as the primary had asked, when that fault was over
    10000033,  # L3: one message was counted of each queue, and completing took no time
    10010023,  # S10: as 9010204
    5140005,  # L4: a killed gateway's lock, and then a batch of an entity whose sends hung
    6270220,  # S4: over AMQP a send waited for one that its client didn't await any more
    6400116,  # S12: by when anybody could look, drift had made less of a step
    7270216,  # S12: of two steps nobody had seen the first, which alone was no more than drift
    16010204,  # S6: of two syphons one moved what the other had lost its lock of
    17010044,  # S6: as 16010204
    17070015,  # L2: the answers to the probes that bring an entity back took no time
    17150165,  # S4: at the moment at which a clock is set it shows either date
    17150367,  # "failed over": an attempt that was cut off needn't have begun a new outage
    35170267,  # a lock that seemed to end at once was renewed again and again, without a pause
    35150163,  # L4: of two entities whose sends hang each may delay a third one's by a lock
    33700042,  # S6: a copy whose lock had ended came again while it was sent, and was sent twice
    28050403,  # S12: a namespace that was down had not seen that its clock was wrong
    24000054,  # L3: a namespace that was up came back once more, and broke no connection
    22150280,  # of a last try of Storage Queue the primary had 1.07 s, and took longer
    14360243,  # L4: as 13030413, with a pause of 5 s after each message that is suspended
    90064,  # "can't be reached": a client's probe shows nothing to the pair, which passes it on
    261,  # S10: a trial of the gateway's own syphon had begun the streak
    1264,  # S10: a suspicion by an attempt that hung went on with a streak
    1010041,  # S10: a suspicion after a quiet interval ended a streak, though a probe hung
    1010287,  # L4: each message of an entity that backs off cost the others a pause of seconds
    1090438,  # S10: another entity's probe had begun a new streak
    1090501,  # S10: as 90064
    1050414,  # "after 1 probes": a send that was cut off at once ended no row of probes
    60110265,  # "after 1 probes": a send that was accepted late is no failure by itself
    60150425,  # L4: with batches of one, what was moved before a message took most of the time
    60170153,  # S4: a secondary's clock that was set back may tell a stay of less than nothing
    60190164,  # L4: a dozen messages of an entity that backs off were looked at one by one
    13030413,  # L4: when a send was given up, suspended messages came back before all others
]

LEAST_ORDERED = 50  # messages that were diverted in the histories of ordered entities
LEAST_CONFIRMED = 400  # publishes of RabbitMQ's clients
LEAST_REFUSED = 100  # sends of syphons, or parts of them, that full queues refused


@pytest.fixture(scope="session")
def counts(tmp_path_factory):
    """A folder of all processes of tests: what each part has seen."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    found = folder / "histories"
    found.mkdir(exist_ok=True)
    return found


@pytest.mark.timeout(600)  # seconds of a processor, shared with other tests
@pytest.mark.parametrize("part", range(PARTS))
def test_every_promise_holds_in_histories_worth_judging(part, counts):
    *_, totals = run_hours(HOURS, first=part * STEP)

    assert totals.problems == {}
    assert LEAST_RUNS <= totals.runs < STEP
    # Rare events are asked of all parts together, by the one that ends last.
    written = counts / f"part-{part}.new"
    written.write_text(json.dumps([totals.runs, totals.seen]))
    written.rename(counts / f"part-{part}.json")
    parts = [json.loads(each.read_text()) for each in counts.glob("*.json")]
    if len(parts) == PARTS:
        seen = sum((Counter(found) for _, found in parts), Counter())
        assert unseen(seen, sum(runs for runs, _ in parts)) == {}


@pytest.mark.parametrize("seed", REGRESSIONS)
def test_a_history_that_once_broke_a_promise_keeps_it(seed):
    assert run_world(seed).problems == ()


@pytest.mark.parametrize("seed", HEAVY_REGRESSIONS)
def test_a_history_of_twice_the_load_keeps_what_it_once_broke(seed):
    assert run_world(seed, load=2).problems == ()


def test_ordered_entities_keep_their_order_and_every_other_promise():
    found = [run_world(seed) for seed in IN_ORDER]

    assert [problem for one in found for problem in one.problems] == []
    diverted = sum(one.seen["an ordered message was diverted"] for one in found)
    assert diverted >= LEAST_ORDERED
    decided = [{each.invariant: each for each in one.judgement.decisions} for one in found]
    assert {each[Invariant.S13].validity for each in decided} == {Validity.HOLDS}


def test_a_primary_that_comes_back_without_queues_or_users_is_an_outage_and_not_without_one():
    found = [run_world(seed) for seed in COME_BACK]

    assert [problem for one in found for problem in one.problems] == []
    seen = sum((one.seen for one in found), Counter())
    assert min(seen["fault: missing"], seen["fault: no login"]) > 0


def test_a_batch_that_is_accepted_in_part_is_neither_lost_nor_sent_again_whole():
    found = [run_world(seed) for seed in TAKEN_IN_PIECES]

    assert [problem for one in found for problem in one.problems] == []
    parts = [
        one.end
        for history in found
        for one in history.records
        if isinstance(one, Attempted) and one.way is Way.SYPHON
    ]
    # The second part of an attempt that the primary accepted in part is one that it refused.
    assert parts.count(End.REFUSED) >= LEAST_REFUSED


def test_publishers_of_rabbitmq_have_every_promise_before_other_namespaces():
    found = [run_world(seed) for seed in PUBLISHED]

    assert [problem for one in found for problem in one.problems] == []
    confirmed = sum(one.seen[f"acked over {Front.RABBITMQ.value}"] for one in found)
    assert confirmed >= LEAST_CONFIRMED


def test_two_syphons_compete_for_one_backlog():
    outcomes = run_world(24)
    moved_by = {
        one.process
        for one in outcomes.records
        if isinstance(one, Attempted) and one.way is Way.SYPHON and one.end is End.ACCEPTED
    }

    assert moved_by == {"syphon-0", "syphon-1"}
    assert outcomes.problems == ()


def test_the_remains_of_a_power_cut_are_judged():
    decisions = {one.invariant: one for one in run_world(71).judgement.decisions}

    assert decisions[Invariant.S7].validity is Validity.HOLDS


def test_nothing_is_too_rare_to_be_asked_of_a_part():
    """The counts are for a thousand runs; all parts have some 310."""
    assert all(often >= 3 for often in SOMETIMES.values())


def test_a_put_that_storage_queue_holds_is_no_stall():
    """L5: what the pair raised as unknown at once, it tried again for as long as it may."""
    parts = Parts(front=Front.STORAGE_QUEUE, breaking=0.1, listener=True)

    assert run_scenario(attrs.evolve(draw(107), parts=parts)).problems == ()


@pytest.mark.parametrize("seed", [1, 3, 16])
def test_a_seed_repeats_its_history(seed):
    first, second = run_world(seed), run_world(seed)

    assert first.trace == second.trace
    assert first.records == second.records


def test_another_seed_gives_another_history():
    assert run_world(1).digest != run_world(3).digest
