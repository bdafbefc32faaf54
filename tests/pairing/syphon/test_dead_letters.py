"""Dead letters of the backlog queues: which of them need nobody, and how many are looked at."""

from collections.abc import Sequence

import attrs
import pytest
import trio

from gateway.domain.dead_letters import EXPIRED, DeadLetters
from gateway.domain.entity import EntityInfo, EntityPath, QueueProperties
from gateway.domain.envelope_fields import PATH
from gateway.domain.errors import BrokerError, EntityNotFound, NotSupported, Unavailable
from gateway.domain.message import DEAD_LETTER_REASON, Delivery, Message
from gateway.pairing.syphon.dead_letters import (
    MOST_SHOWN,
    SHOWN,
    ExpiryRules,
    count_dead_letters,
)
from tests.harness.clocks import VirtualClock
from tests.pairing.harness import QUEUE, virtual_time

pytestmark = virtual_time


@attrs.define(eq=False)
class Primary:
    """Tells by their names which entities keep the messages that expire."""

    keeping: set[str] = attrs.field(factory=set)
    errors: dict[str, BrokerError] = attrs.field(factory=dict)
    hangs: bool = False
    asked: list[str] = attrs.field(factory=list)

    async def inspect(self, entity: EntityPath) -> EntityInfo:
        self.asked.append(entity.name)
        await trio.lowlevel.checkpoint()
        if self.hangs:
            await trio.sleep_forever()
        if entity.name in self.errors:
            raise self.errors[entity.name]
        keeps = QueueProperties(dead_lettering_on_expiration=entity.name in self.keeping)
        return EntityInfo(path=entity, properties=keeps)


@attrs.define(eq=False)
class Secondary:
    """Shows the dead letters of its queues."""

    letters: list[Delivery] = attrs.field(factory=list)
    counts: bool = False  # the dead letters of a queue that doesn't tell their number
    error: BrokerError | None = None
    peeks: list[tuple[int, int]] = attrs.field(factory=list)  # first number and limit

    async def inspect(self, entity: EntityPath) -> EntityInfo:
        await trio.lowlevel.checkpoint()
        if not self.counts:
            raise NotSupported("this namespace counts nothing")
        return EntityInfo(path=entity, active=len(self.letters))

    async def peek(
        self, entity: EntityPath, *, from_sequence: int = 0, limit: int = 1
    ) -> Sequence[Delivery]:
        self.peeks.append((from_sequence, limit))
        await trio.lowlevel.checkpoint()
        if self.error is not None:
            raise self.error
        return [each for each in self.letters if each.sequence_number >= from_sequence][:limit]

    def put(self, letters: int, reason: str = EXPIRED, entity: str = "telemetry") -> None:
        first = len(self.letters) + 1
        self.letters += [letter(entity, reason, number) for number in range(first, first + letters)]


def letter(entity: str, reason: str = EXPIRED, number: int = 1) -> Delivery:
    properties = {PATH: entity, DEAD_LETTER_REASON: reason}
    return Delivery(message=Message(properties=properties), sequence_number=number)


@pytest.fixture
def primary() -> Primary:
    return Primary()


@pytest.fixture
def rules(primary: Primary) -> ExpiryRules:
    return ExpiryRules(primary)  # type: ignore[arg-type]


@pytest.fixture
def secondary() -> Secondary:
    return Secondary()


async def counted(
    secondary: Secondary, *told: int | None, rules: ExpiryRules | None = None
) -> DeadLetters:
    """The dead letters of queues that tell those numbers."""
    infos = [EntityInfo(path=QUEUE, dead_lettered=number) for number in told]
    return await count_dead_letters(secondary, infos, VirtualClock()(), rules)  # type: ignore[arg-type]


# The rules of the entities


async def test_letters_have_merely_expired_where_their_entity_would_not_have_kept_them(
    primary: Primary, rules: ExpiryRules
) -> None:
    primary.keeping.add("orders")
    letters = [letter("telemetry")] * 3 + [letter("orders"), letter("telemetry", "NotSupported")]

    assert await rules.expired(letters) == 3
    assert sorted(primary.asked) == ["orders", "telemetry"]


async def test_a_letter_that_names_no_entity_is_to_be_looked_at(
    primary: Primary, rules: ExpiryRules
) -> None:
    message = Message(properties={DEAD_LETTER_REASON: EXPIRED})
    nameless = Delivery(message=message, sequence_number=1)

    assert await rules.expired([nameless, letter("")]) == 0
    assert primary.asked == []


async def test_a_rule_is_asked_for_again_after_ten_minutes(
    primary: Primary, rules: ExpiryRules
) -> None:
    expired = [await rules.expired([letter("telemetry")])]
    primary.keeping.add("telemetry")
    for seconds in (600.0, 0.1):
        await trio.sleep(seconds)
        expired.append(await rules.expired([letter("telemetry")]))

    assert expired == [1, 1, 0]
    assert primary.asked == ["telemetry"] * 2


@pytest.mark.parametrize(("error", "asked"), [(EntityNotFound("none"), 1), (Unavailable("503"), 2)])
async def test_an_entity_that_cannot_be_asked_may_keep_them_and_a_missing_one_is_remembered(
    primary: Primary, rules: ExpiryRules, error: BrokerError, asked: int
) -> None:
    primary.errors["telemetry"] = error
    expired = [await rules.expired([letter("telemetry")]) for _ in range(2)]

    assert expired == [0, 0]
    assert len(primary.asked) == asked


async def test_one_count_asks_about_twenty_entities(primary: Primary, rules: ExpiryRules) -> None:
    letters = [letter(f"queue-{number}") for number in range(25)]
    first, second = await rules.expired(letters), await rules.expired(letters)

    assert (first, second) == (20, 25)
    assert len(primary.asked) == 25


async def test_a_primary_without_an_answer_delays_a_count_by_a_second(
    primary: Primary, rules: ExpiryRules
) -> None:
    primary.hangs = True
    began = trio.current_time()
    expired = await rules.expired([letter("telemetry"), letter("orders")])

    assert (expired, trio.current_time() - began) == (0, 1.0)


# The counts


async def test_without_a_queue_nothing_is_known(secondary: Secondary) -> None:
    assert (await counted(secondary)).messages is None


async def test_queues_without_dead_letters_are_not_peeked(secondary: Secondary) -> None:
    assert (await counted(secondary, 0, 0)).messages == 0
    assert secondary.peeks == []


async def test_the_letters_of_all_queues_add_up(secondary: Secondary) -> None:
    secondary.put(2, "NotSupported")
    dead = await counted(secondary, 2, 0, 2)

    assert (dead.messages, dead.reasons) == (4, {"NotSupported": 4})


@pytest.mark.parametrize(("counts", "letters"), [(True, SHOWN), (False, SHOWN - 1)])
async def test_letters_that_the_queue_does_not_tell_are_counted_or_shown_whole(
    secondary: Secondary, counts: bool, letters: int
) -> None:
    secondary.counts = counts
    secondary.put(letters, "NotSupported")

    assert (await counted(secondary, None)).messages == letters


async def test_letters_that_are_neither_counted_nor_shown_whole_are_unknown(
    secondary: Secondary,
) -> None:
    secondary.put(SHOWN, "NotSupported")
    dead = await counted(secondary, 1, None, 1)

    assert (dead.messages, dead.reasons["NotSupported"]) == (None, 3 * SHOWN)


async def test_letters_that_are_not_shown_now_have_an_unknown_reason(secondary: Secondary) -> None:
    secondary.error = Unavailable("503")
    dead = [await counted(secondary, 3), await counted(secondary, None)]

    assert [(each.messages, each.reasons) for each in dead] == [(3, {"unknown": 3}), (None, {})]


async def test_a_missing_queue_of_dead_letters_is_an_empty_one(secondary: Secondary) -> None:
    secondary.error = EntityNotFound("none")

    assert (await counted(secondary, None)).messages == 0


async def test_pages_are_peeked_on_while_all_letters_merely_expired(
    secondary: Secondary, rules: ExpiryRules
) -> None:
    secondary.put(SHOWN + 1)
    dead = await counted(secondary, SHOWN + 1, rules=rules)

    assert secondary.peeks == [(0, SHOWN), (SHOWN + 1, SHOWN)]
    assert (dead.messages, dead.expired, dead.to_look_at) == (SHOWN + 1, SHOWN + 1, 0)


async def test_no_page_is_peeked_behind_the_last_letter_that_was_counted(
    secondary: Secondary, rules: ExpiryRules
) -> None:
    secondary.put(SHOWN)
    dead = await counted(secondary, SHOWN, rules=rules)

    assert (len(secondary.peeks), dead.expired) == (1, SHOWN)


async def test_one_letter_that_somebody_should_look_at_is_enough(
    secondary: Secondary, rules: ExpiryRules
) -> None:
    secondary.put(1, "NotSupported")
    secondary.put(2 * SHOWN)
    dead = await counted(secondary, 2 * SHOWN + 1, rules=rules)

    assert (len(secondary.peeks), dead.expired, dead.to_look_at) == (1, SHOWN - 1, SHOWN + 2)


async def test_no_more_than_a_thousand_letters_of_a_queue_are_looked_at(
    secondary: Secondary, rules: ExpiryRules
) -> None:
    secondary.put(MOST_SHOWN + SHOWN)
    dead = await counted(secondary, MOST_SHOWN + SHOWN, rules=rules)

    assert (len(secondary.peeks), dead.expired) == (MOST_SHOWN // SHOWN, MOST_SHOWN)


async def test_without_rules_each_letter_is_to_be_looked_at(secondary: Secondary) -> None:
    secondary.put(2 * SHOWN)
    dead = await counted(secondary, 2 * SHOWN)

    assert (len(secondary.peeks), dead.to_look_at) == (1, 2 * SHOWN)
