"""The ways of a send are tried one after the other, and each batch has its verdict."""

from collections.abc import Sequence
from math import inf
from typing import Any

import attrs
import pytest
import trio

from gateway.domain.clocks.times import Now
from gateway.domain.entity import EntityPath
from gateway.domain.errors import (
    BrokerError,
    Busy,
    EntityNotFound,
    MessageTooLarge,
    NotAuthorized,
    Unavailable,
)
from gateway.domain.message import AcceptedBy, Message
from gateway.moments import Moments
from gateway.pairing.options import (
    EntityRule,
    OnUnknown,
    OnUnreachable,
    PairOptions,
    UnknownEntity,
)
from gateway.pairing.sending import Batch, Sending
from gateway.pairing.ways import Ways
from tests.harness.clocks import VirtualClock
from tests.pairing.harness import BILLS, LABEL, ORDERS, message, virtual_time

pytestmark = virtual_time

DOWN = Unavailable("503")


@attrs.define(eq=False)
class Pauses:
    """The primary is busy for so long."""

    seconds: float = 0.0

    def left(self, entity: EntityPath) -> float:
        return self.seconds


@attrs.define(eq=False)
class Stand:
    """Namespaces, states and admission in one, which note each way that is tried."""

    accepts: set[str] = attrs.field(factory=set)  # the attempts that accept all
    tried: list[str] = attrs.field(factory=list)
    asks_primary: bool = True  # the first attempt reaches the primary
    hangs: bool = False  # the backlog
    missing: BrokerError | None = None
    refuses: dict[str, BrokerError] = attrs.field(factory=dict)  # admission, by message id
    policies: list[UnknownEntity] = attrs.field(factory=list)
    alone: set[str] = attrs.field(factory=set)  # ids that only the primary can take
    pauses: Pauses = attrs.field(factory=Pauses)
    spools: bool = False

    def ways(self, *copies: Any, **options: Any) -> Ways:
        return Ways(
            options=PairOptions(label=LABEL, **options),
            states=self,  # type: ignore[arg-type]
            admission=self,  # type: ignore[arg-type]
            to_primary=self,  # type: ignore[arg-type]
            to_backlog=Backlog(self, "backlog"),  # type: ignore[arg-type]
            to_spool=Backlog(self, "spool") if self.spools else None,  # type: ignore[arg-type]
            copies=copies,
        )

    def end(self, sending: Sending, attempt: str, accepted_by: AcceptedBy) -> bool:
        self.tried.append(attempt)
        for batch in sending.pending:
            if attempt in self.accepts:
                batch.accepted_by = accepted_by
            else:
                batch.errors[accepted_by] = DOWN
        return not sending.pending

    # As `PrimarySender`.

    async def send_to_primary(self, sending: Sending) -> bool:
        await trio.lowlevel.checkpoint()
        sending.primary_asked = self.asks_primary
        return self.end(sending, "primary", AcceptedBy.PRIMARY)

    async def send_to_primary_after_all(
        self, sending: Sending, *, at_most: float = inf, has_other_way: bool = False
    ) -> bool:
        await trio.lowlevel.checkpoint()
        how = f" for {at_most:g} s" if at_most < inf else " before others" if has_other_way else ""
        return self.end(sending, f"primary again{how}", AcceptedBy.PRIMARY)

    # As `EntityStates`.

    def unreachable(self, entity: EntityPath) -> BrokerError | None:
        return self.missing

    # As `Admission`.

    def is_for_primary_alone(self, entity: EntityPath, messages: Sequence[Message]) -> bool:
        return any(each.message_id in self.alone for each in messages)

    def admit_to_backlog(
        self, entity: EntityPath, messages: Sequence[Message], policy: UnknownEntity
    ) -> None:
        self.policies.append(policy)
        for each in messages:
            if (error := self.refuses.get(str(each.message_id))) is not None:
                raise error


@attrs.define(eq=False)
class Backlog:
    """The secondary, or the spool."""

    stand: Stand
    name: str

    async def send_to_backlog(self, sending: Sending, *, until_one_hangs: bool = False) -> bool:
        await trio.lowlevel.checkpoint()
        sending.backlog_hangs |= self.stand.hangs
        how = " until one hangs" if until_one_hangs else ""
        return self.stand.end(sending, f"{self.name}{how}", AcceptedBy.BACKLOG)

    async def send_to_backlog_after_all(self, sending: Sending) -> bool:
        await trio.lowlevel.checkpoint()
        return self.stand.end(sending, f"{self.name} again", AcceptedBy.BACKLOG)


@pytest.fixture
def stand() -> Stand:
    return Stand()


def taken() -> Now:
    return Moments(VirtualClock()).now()


async def deliver(ways: Ways, *ids: str, entity: EntityPath = ORDERS) -> list[Batch]:
    batches = [Batch([message(each)]) for each in ids or ("m1",)]
    await ways.deliver(entity, batches, taken(), trio.current_time() + 30.0)
    return batches


def made(ways: Ways, *ids: str, entity: EntityPath = ORDERS, **how: bool) -> Sending:
    batches = [Batch([message(each)]) for each in ids or ("m1",)]
    return ways.make(entity, batches, taken(), trio.current_time() + 30.0, **how)


async def do_nothing(sending: Sending) -> None:
    await trio.lowlevel.checkpoint()


# The order of the ways


@pytest.mark.parametrize(
    ("accepts", "tried"),
    [
        ("primary", ["primary"]),
        ("backlog", ["primary", "backlog"]),
        ("primary again", ["primary", "backlog", "primary again"]),
        ("backlog again", ["primary", "backlog", "primary again", "backlog again"]),
        ("none", ["primary", "backlog", "primary again", "backlog again"]),
    ],
)
async def test_each_way_is_tried_until_one_accepts(
    stand: Stand, accepts: str, tried: list[str]
) -> None:
    stand.accepts.add(accepts)
    [batch] = await deliver(stand.ways())

    assert stand.tried == tried
    assert (batch.accepted_by is None) is (accepts == "none")


@pytest.mark.parametrize(
    ("accepts", "last"),
    [
        ("primary again before others", ["primary again before others"]),
        ("spool", ["primary again before others", "spool"]),
        ("primary again", ["primary again before others", "spool", "primary again"]),
        (
            "none",
            ["primary again before others", "spool", "primary again", "backlog again"],
        ),
    ],
)
async def test_a_spool_is_tried_behind_a_primary_that_may_fail_fast(
    stand: Stand, accepts: str, last: list[str]
) -> None:
    stand.spools = True
    stand.accepts.add(accepts)
    await deliver(stand.ways())

    assert stand.tried == ["primary", "backlog", *last]


@pytest.mark.parametrize(
    ("accepts", "tried"),
    [
        ("primary again for 1 s", ["primary again for 1 s"]),
        ("backlog", ["primary again for 1 s", "backlog"]),
        ("none", ["primary again for 1 s", "backlog", "primary again", "backlog again"]),
    ],
)
async def test_a_backlog_that_hangs_before_the_primary_was_asked_leaves_it_a_second(
    stand: Stand, accepts: str, tried: list[str]
) -> None:
    stand.asks_primary, stand.hangs = False, True
    stand.accepts.add(accepts)
    await deliver(stand.ways())

    assert stand.tried == ["primary", "backlog until one hangs", *tried]


@pytest.mark.parametrize("asked", [True, False])
async def test_a_backlog_that_hangs_or_fails_has_no_second_turn_otherwise(
    stand: Stand, asked: bool
) -> None:
    stand.asks_primary = stand.hangs = asked
    await deliver(stand.ways())

    first = "backlog" if asked else "backlog until one hangs"
    assert stand.tried == ["primary", first, "primary again", "backlog again"]


# The options of a send


async def test_a_send_has_the_options_of_its_entity(stand: Stand) -> None:
    rule = EntityRule(match="orders", divert=False, on_unknown=OnUnknown.RAISE)
    ways = stand.ways(entities=(rule,), attempt_timeout=7.0)
    ruled, usual = made(ways), made(ways, entity=BILLS)

    assert (ruled.may_divert, ruled.on_unknown) == (False, OnUnknown.RAISE)
    assert (usual.may_divert, usual.on_unknown) == (True, OnUnknown.DIVERT)
    assert usual.attempt_timeout == 7.0
    assert not ways.keeps_order(ORDERS)


@attrs.define
class Copies:
    """Makes the same second copy for each send, and notes which of them keep their order."""

    seen: list[bool]
    second: Any = None

    def second_of(self, sending: Sending, ways: Ways) -> Any:
        self.seen.append(sending.in_order)
        return self.second


@pytest.mark.parametrize("in_order", [True, False])
async def test_a_send_keeps_its_order_if_it_is_asked_to(stand: Stand, in_order: bool) -> None:
    seen: list[bool] = []
    ways = stand.ways(Copies(seen))
    made(ways, in_order=in_order)
    batches = [Batch([message()])]
    await ways.deliver(ORDERS, batches, taken(), trio.current_time() + 30.0, in_order=in_order)

    assert seen == [in_order] * 2


async def test_sends_may_overtake_each_other_by_default(stand: Stand) -> None:
    seen: list[bool] = []
    ways = stand.ways(Copies(seen))
    made(ways)
    await deliver(ways)

    assert seen == [False] * 2


async def test_the_first_copy_that_is_made_is_the_second_of_a_send(stand: Stand) -> None:
    first, second = object(), object()
    ways = stand.ways(Copies([]), Copies([], first), Copies([], second))

    assert made(ways).second is first
    assert made(stand.ways(Copies([]))).second is None


async def test_a_send_that_one_message_keeps_on_the_primary_has_no_copy(stand: Stand) -> None:
    stand.alone.add("large")
    ways = stand.ways(Copies([], object()))
    large, small = made(ways, "m1", "large"), made(ways, "m1", "m2")

    assert (large.is_for_primary_alone, large.second) == (True, None)
    assert not small.is_for_primary_alone
    assert small.second is not None


# Verdicts


async def test_a_send_that_nobody_accepts_says_why_each_way_failed(stand: Stand) -> None:
    [batch] = await deliver(stand.ways())

    assert isinstance(batch.error, Unavailable)
    assert str(batch.error) == (
        "neither the primary nor the backlog accepted the send: primary: 503; backlog: 503"
    )


async def test_a_send_without_an_attempt_had_no_time(stand: Stand) -> None:
    ways = stand.ways()
    sending = made(ways)
    await ways.give_verdicts(sending, do_nothing)

    assert str(sending.batches[0].error).endswith(
        "accepted the send: there was no time left to try"
    )


async def test_the_fault_of_a_message_goes_before_the_failures_of_ways(stand: Stand) -> None:
    ways = stand.ways()
    sending = made(ways)
    sending.batches[0].errors[AcceptedBy.PRIMARY] = DOWN
    sending.batches[0].fault = MessageTooLarge("too large")
    await ways.give_verdicts(sending, do_nothing)

    assert str(sending.batches[0].error).endswith("accepted the send: too large")


async def test_a_send_to_a_busy_entity_is_told_for_how_long_to_wait(stand: Stand) -> None:
    stand.pauses.seconds = 0.5
    [batch] = await deliver(stand.ways())

    assert isinstance(batch.error, Busy)
    assert batch.error.retry_after == 0.5


async def test_an_error_of_a_way_is_that_of_all_that_wait_for_a_verdict(stand: Stand) -> None:
    ways = stand.ways()
    sending = made(ways, "m1", "m2")
    refused = NotAuthorized("no right")
    sending.batches[0].accepted_by = AcceptedBy.PRIMARY

    async def refuse(_: Sending) -> None:
        await trio.lowlevel.checkpoint()
        raise refused

    await ways.give_verdicts(sending, refuse)

    assert [each.error for each in sending.batches] == [None, refused]


# Before a diversion


async def test_a_missing_entity_is_an_error_unless_its_sends_are_diverted(stand: Stand) -> None:
    stand.missing = EntityNotFound("none")
    stand.accepts.add("backlog")
    [raised] = await deliver(stand.ways(on_unreachable=OnUnreachable.RAISE))
    [diverted] = await deliver(stand.ways(on_unreachable=OnUnreachable.DIVERT))

    assert raised.error is stand.missing
    assert diverted.accepted_by is AcceptedBy.BACKLOG
    assert stand.tried == ["primary", "primary", "backlog"]


async def test_a_batch_that_the_primary_would_refuse_is_not_diverted(stand: Stand) -> None:
    stand.refuses["m1"] = NotAuthorized("no session")
    stand.accepts.add("backlog")
    refused, diverted = await deliver(stand.ways(), "m1", "m2")

    assert refused.error is stand.refuses["m1"]
    assert diverted.accepted_by is AcceptedBy.BACKLOG


async def test_unknown_entities_are_admitted_by_the_rule_or_the_option(stand: Stand) -> None:
    stand.accepts.add("backlog")
    rule = EntityRule(match="orders", unknown_entity=UnknownEntity.REFUSE)
    ways = stand.ways(entities=(rule,), unknown_entity=UnknownEntity.DIVERT)
    await deliver(ways)
    await deliver(ways, entity=BILLS)

    assert stand.policies == [UnknownEntity.REFUSE, UnknownEntity.DIVERT]


@pytest.mark.parametrize(("seconds", "kind"), [(0.0, MessageTooLarge), (0.5, Busy)])
async def test_a_message_that_is_too_large_for_the_backlog_waits_for_a_busy_primary(
    stand: Stand, seconds: float, kind: type[BrokerError]
) -> None:
    stand.refuses["m1"] = MessageTooLarge("too large")
    stand.pauses.seconds = seconds
    [batch] = await deliver(stand.ways())

    assert type(batch.error) is kind
