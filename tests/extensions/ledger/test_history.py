"""The place of a message follows from its facts, in whatever order they come."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.extensions.ledger.facts import Fact, PairSide, What
from gateway.extensions.ledger.history import MessagePlace, Twice, counted, histories, text_of

NOW = datetime(2026, 11, 29, tzinfo=UTC)
QUEUE = "east/x-servicebus-transfer/0"


def fact(side: PairSide, what: What, seconds: float = 0.0, entity: str = "orders") -> Fact:
    queue = QUEUE if side is PairSide.SECONDARY else ""
    at = NOW + timedelta(seconds=seconds)
    return Fact(at=at, message="m1", entity=entity, side=side, what=what, queue=queue)


P, S = PairSide.PRIMARY, PairSide.SECONDARY
ACCEPTED, UNKNOWN, NOT_SENT = What.ACCEPTED, What.UNKNOWN, What.NOT_SENT
COMPLETED, DEAD = What.COMPLETED, What.DEAD_LETTERED


@pytest.mark.parametrize(
    ("facts", "where", "twice"),
    [
        ([], MessagePlace.NOT_RECORDED, Twice.NO),
        ([(P, ACCEPTED)], MessagePlace.AT_PRIMARY, Twice.NO),
        ([(P, NOT_SENT)], MessagePlace.NOT_SENT, Twice.NO),
        ([(P, NOT_SENT), (P, ACCEPTED)], MessagePlace.AT_PRIMARY, Twice.NO),
        ([(P, UNKNOWN)], MessagePlace.UNKNOWN, Twice.NO),
        ([(S, UNKNOWN)], MessagePlace.UNKNOWN, Twice.NO),
        ([(P, UNKNOWN), (S, UNKNOWN)], MessagePlace.UNKNOWN, Twice.POSSIBLE),
        ([(P, NOT_SENT), (S, ACCEPTED)], MessagePlace.ON_BACKLOG, Twice.NO),
        ([(P, UNKNOWN), (S, ACCEPTED)], MessagePlace.ON_BACKLOG, Twice.POSSIBLE),
        ([(S, ACCEPTED), (P, ACCEPTED), (S, COMPLETED)], MessagePlace.AT_PRIMARY, Twice.NO),
        ([(S, ACCEPTED), (P, ACCEPTED)], MessagePlace.AT_PRIMARY, Twice.POSSIBLE),
        ([(P, ACCEPTED), (P, ACCEPTED)], MessagePlace.AT_PRIMARY, Twice.CERTAIN),
        ([(S, ACCEPTED), (S, DEAD)], MessagePlace.DEAD_LETTERED, Twice.NO),
        ([(S, ACCEPTED), (S, COMPLETED)], MessagePlace.COMPLETED, Twice.NO),
        ([(P, UNKNOWN), (P, ACCEPTED)], MessagePlace.AT_PRIMARY, Twice.POSSIBLE),
        # a syphon's ledger alone
        ([(P, ACCEPTED), (S, COMPLETED)], MessagePlace.AT_PRIMARY, Twice.NO),
    ],
)
def test_the_place_follows_from_the_facts(facts, where, twice):
    counts = counted([fact(*each) for each in facts])

    assert (counts.where, counts.twice) == (where, twice)


@given(
    copies=st.lists(
        st.sampled_from(["direct", "lost answer", "diverted", "moved", "dead", "refused"]),
        min_size=1,
        max_size=5,
    ),
    answers=st.data(),
)
def test_the_facts_never_contradict_a_naive_pair(copies, answers):
    """Copies at random; the pair counts what the primary has, and what waits."""
    home = waiting = 0
    facts: list[Fact] = []
    for copy in copies:
        match copy:
            case "direct":
                home += 1
                facts.append(fact(P, ACCEPTED))
            case "lost answer":
                home += answers.draw(st.integers(0, 1))
                facts.append(fact(P, UNKNOWN))
            case "refused":
                facts.append(fact(P, NOT_SENT))
            case "diverted":
                waiting += 1
                facts.append(fact(S, ACCEPTED))
            case "moved":
                home += 1
                facts += [fact(S, ACCEPTED), fact(P, ACCEPTED), fact(S, COMPLETED)]
            case "dead":
                facts += [fact(S, ACCEPTED), fact(S, DEAD)]
    counts = counted(answers.draw(st.permutations(facts)))

    assert counts.waiting == waiting
    assert counts.twice is not Twice.CERTAIN or home > 1
    assert counts.twice is not Twice.NO or home + waiting <= 1
    assert counts.where is not MessagePlace.AT_PRIMARY or home
    assert counts.where is not MessagePlace.NOT_SENT or home + waiting == 0


def test_each_entity_has_a_history_of_its_own_by_dates():
    """Names of entities have no case."""
    facts = [
        fact(S, COMPLETED, 3.0),
        fact(S, ACCEPTED, 1.0, "Orders"),
        fact(P, ACCEPTED, 2.0, "invoices"),
    ]

    invoices, orders = histories(facts)

    assert (invoices.entity, len(invoices.facts)) == ("invoices", 1)
    assert [each.what for each in orders.facts] == [ACCEPTED, COMPLETED]
    assert orders.queues == []


def test_a_copy_without_an_answer_may_be_in_its_queue():
    [history] = histories([fact(S, UNKNOWN)])

    assert history.queues == [QUEUE]


def test_each_fact_has_words():
    texts = {text_of(fact(side, what)) for side in PairSide for what in What}

    assert len(texts) == len(PairSide) * len(What)
