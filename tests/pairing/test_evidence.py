"""Sends and probes are evidence about the namespace as a whole, and about slow entities."""

import pytest
import trio

from gateway.domain.entity import EntityPath
from gateway.domain.errors import NoAnswer, NoToken, Unavailable, Unreachable
from gateway.domain.health.reachability import FEWEST, SILENT, WITHIN
from gateway.pairing.entity_record import Attempt
from gateway.pairing.evidence import MOST_WINDOWS, Evidence
from tests.harness.retained import entries
from tests.pairing.harness import ORDERS, virtual_time

pytestmark = virtual_time

LATE = NoAnswer("no answer within 2 s")


@pytest.fixture
def evidence() -> Evidence:
    return Evidence(slow_call_rate=0.5)


def attempt(entity: EntityPath = ORDERS) -> Attempt:
    return Attempt(entity=entity, epoch=0, pauses=0, began=trio.current_time())


def silence(evidence: Evidence, entities: int = SILENT) -> None:
    for number in range(entities):
        evidence.record_failure(attempt(EntityPath(f"queue-{number}")), LATE)


def versions(evidence: Evidence) -> tuple[int, int]:
    return evidence.changes.version, evidence.returns.version


@pytest.mark.parametrize("error", [Unreachable("refused"), NoToken("no token")])
async def test_a_failure_of_the_connection_loses_the_namespace_once(
    evidence: Evidence, error: Unavailable
) -> None:
    evidence.record_failure(attempt(), error)
    began = trio.current_time()
    await trio.sleep(1.0)
    evidence.record_failure(attempt(), error)

    assert (evidence.namespace.is_lost, evidence.namespace.reason) == (True, str(error))
    assert (evidence.namespace.since, evidence.comeback.began) == (began, began)
    assert versions(evidence) == (1, 0)


async def test_a_failure_of_one_entity_is_none_of_the_namespace(evidence: Evidence) -> None:
    evidence.record_failure(attempt(), Unavailable("503"))

    assert not evidence.namespace.is_lost
    assert not evidence.namespace.is_any_silent
    assert (evidence.comeback.began, versions(evidence)) == (None, (0, 0))


async def test_several_entities_without_an_answer_are_a_lost_namespace(evidence: Evidence) -> None:
    silence(evidence, SILENT - 1)
    before = (evidence.namespace.is_lost, evidence.comeback.began, versions(evidence))
    silence(evidence)

    assert before == (False, None, (0, 0))
    assert evidence.namespace.is_lost
    assert evidence.comeback.began == trio.current_time()
    assert versions(evidence) == (1, 0)


async def test_an_answer_after_a_loss_is_a_return(evidence: Evidence) -> None:
    silence(evidence)
    await trio.sleep(1.0)
    early = evidence.record_answer(trio.current_time() - 1.1)
    before = versions(evidence)
    found = evidence.record_answer(trio.current_time())

    assert (early, before, found) == (False, (1, 0), True)
    assert evidence.found_at == trio.current_time()
    assert versions(evidence) == (2, 1)


async def test_an_answer_after_the_silence_of_one_entity_is_no_return(evidence: Evidence) -> None:
    silence(evidence, 1)
    await trio.sleep(1.0)
    found = evidence.record_answer(trio.current_time())
    again = evidence.record_answer(trio.current_time())

    assert (found, again) == (True, False)
    assert evidence.found_at == float("-inf")
    assert versions(evidence) == (1, 0)


async def test_a_remembered_failure_is_outdated_by_an_answer_since(evidence: Evidence) -> None:
    evidence.record_answer(5.0)
    remembered = [Unavailable("503") for _ in range(3)]
    for error, since in zip(remembered, (4.0, 5.0, None), strict=True):
        error.since = since

    assert [evidence.is_outdated(each) for each in remembered] == [True, False, False]


async def test_sends_in_time_count_only_beside_slow_ones(evidence: Evidence) -> None:
    for _ in range(100):
        evidence.in_time(attempt())
    alone = [evidence.too_many_late(attempt()) for _ in range(FEWEST)]
    for _ in range(FEWEST + 1):
        evidence.in_time(attempt())

    assert alone == [False] * (FEWEST - 1) + [True]
    assert not evidence.too_many_late(attempt(EntityPath("another")))
    assert evidence.too_many_late(attempt())  # 6 of 12
    evidence.in_time(attempt())
    evidence.in_time(attempt())
    assert not evidence.too_many_late(attempt())  # 7 of 15


async def test_without_a_rate_no_answer_is_too_late() -> None:
    evidence = Evidence(slow_call_rate=None)

    assert not any(evidence.too_many_late(attempt()) for _ in range(3 * FEWEST))
    assert evidence.slow(attempt()) is None


async def test_a_window_begins_with_its_first_slow_send_and_is_kept(evidence: Evidence) -> None:
    first = evidence.slow(attempt())
    await trio.sleep(1.0)

    assert first is not None
    assert evidence.slow(attempt()) is first
    assert first.began == trio.current_time() - 1.0


async def test_slow_sends_are_counted_of_a_bounded_number_of_entities(evidence: Evidence) -> None:
    for number in range(MOST_WINDOWS):
        assert evidence.slow(attempt(EntityPath(f"queue-{number}"))) is not None

    assert evidence.slow(attempt()) is None
    assert evidence.slow(attempt(EntityPath("queue-0"))) is not None


async def test_a_window_without_slow_sends_is_forgotten(evidence: Evidence) -> None:
    empty = entries(evidence)
    evidence.slow(attempt())
    evidence.too_many_late(attempt(EntityPath("later")))
    evidence.forget_old(trio.current_time() + WITHIN)
    before = entries(evidence)
    evidence.forget_old(trio.current_time() + WITHIN + 0.1)

    assert before > empty
    assert entries(evidence) == empty


async def test_a_pause_of_the_gateway_leaves_no_evidence(evidence: Evidence) -> None:
    empty = entries(evidence)
    silence(evidence)
    evidence.slow(attempt())
    evidence.forget()

    assert not evidence.namespace.is_lost
    assert evidence.comeback.began is None
    assert versions(evidence) == (2, 0)
    assert entries(evidence) == empty
