from datetime import timedelta

import attrs
import pytest
import trio

from gateway.domain import backlog
from gateway.domain.entity import EntityInfo, EntityPath, EntityStatus, QueueProperties
from gateway.domain.errors import NotAuthorized, QuotaExceeded, Unavailable
from gateway.pairing.options import PairOptions
from gateway.pairing.provision import (
    backlog_paths,
    backlog_queues,
    depends_on_primary,
    doubts,
    further_queues,
    provision,
    usable_backlog,
)
from gateway.pairing.records.place import place_of
from tests.harness.faults import Hang, Operation, Refuse
from tests.pairing.harness import LABEL, QUEUE, refuse, virtual_time

pytestmark = virtual_time

MANAGE, PROBE = Operation.MANAGE, Operation.PROBE
NAMES = ["east/x-servicebus-transfer/0", "east/x-servicebus-transfer/1"]


USUAL = backlog.BacklogQueue(path=QUEUE)
WITH_SESSIONS = backlog.BacklogQueue(
    path=EntityPath("sessions"),
    properties=attrs.evolve(backlog.QUEUE_PROPERTIES, requires_session=True),
)


@pytest.fixture
async def fresh(harness):
    """A secondary without backlog queues."""
    return await harness.namespace()


async def test_the_names_are_those_of_the_legacy_client(fresh):
    made = await provision(fresh.broker, LABEL, 12)

    assert [queue.name for queue in made[:2]] == NAMES
    assert made[11].name == "east/x-servicebus-transfer/11"


async def test_the_properties_are_those_of_the_legacy_client_but_for_a_short_lock(fresh):
    await provision(fresh.broker, LABEL, 1)

    properties = (await fresh.store.inspect(QUEUE)).properties

    assert properties == QueueProperties(
        max_size_in_megabytes=5120,
        max_delivery_count=2147483647,
        default_time_to_live=None,
        auto_delete_on_idle=None,
        lock_duration=timedelta(seconds=15),
        dead_lettering_on_expiration=True,
        enable_batched_operations=True,
        requires_session=False,
        requires_duplicate_detection=False,
        forward_to=None,
        status=EntityStatus.ACTIVE,
    )


async def test_further_queues_are_made_with_the_records_and_those_with_sessions_if_it_has_any(
    fresh,
):
    further = [WITH_SESSIONS, backlog.BacklogQueue(path=EntityPath("further"))]

    # The one lacks sessions and a place for records, which the other has.
    few = await provision(fresh.broker, LABEL, 1, further=further)
    others = await provision(fresh.store, LABEL, 1, further=further)
    records = place_of(fresh.store, LABEL)

    assert [queue.name for queue in few] == [NAMES[0], "further"]
    assert others == [WITH_SESSIONS.path, records.queue]
    assert (await fresh.store.inspect(records.queue)).path == records.queue
    assert await provision(fresh.store, LABEL, 1, further=further) == []


async def test_a_queue_that_is_there_is_left_as_it_is(fresh):
    await fresh.store.create_queue(QUEUE, QueueProperties(max_delivery_count=7))

    made = await provision(fresh.broker, LABEL, 2)

    assert [queue.name for queue in made] == NAMES[1:]
    assert (await fresh.store.inspect(QUEUE)).properties.max_delivery_count == 7


@pytest.mark.parametrize("error", [NotAuthorized, Unavailable, QuotaExceeded])
async def test_a_queue_that_cant_be_made_is_an_error(fresh, error):
    fresh.fail(refuse(error, "no"), MANAGE)

    with pytest.raises(error):
        await provision(fresh.broker, LABEL, 2)


async def test_an_existing_entity_can_be_used(fresh):
    await provision(fresh.broker, LABEL, 2)

    found = await usable_backlog(fresh.broker, LABEL, 2)

    assert [queue.name for queue in found.queues] == NAMES
    assert found.problems == ()


async def test_the_smallest_limit_counts(fresh):
    for name, limit in zip(NAMES, [3000, 2000], strict=True):
        await fresh.store.create_queue(EntityPath(name), QueueProperties(max_message_size=limit))

    found = await usable_backlog(fresh.broker, LABEL, 2)

    assert found.max_message_size == 2000


async def test_a_missing_queue_is_a_problem_and_not_an_error(fresh):
    await provision(fresh.broker, LABEL, 1)

    found = await usable_backlog(fresh.broker, LABEL, 2)

    assert [queue.name for queue in found.queues] == NAMES[:1]
    assert len(found.problems) == 1
    assert NAMES[1] in found.problems[0]
    assert "pairgate provision" in found.problems[0]


async def test_a_disabled_queue_is_a_problem(fresh):
    await fresh.store.create_queue(QUEUE, QueueProperties(status=EntityStatus.DISABLED))

    found = await usable_backlog(fresh.broker, LABEL, 1)

    assert found.queues == ()
    assert "Disabled" in found.problems[0]


@pytest.mark.parametrize(
    ("fault", "why"), [(Refuse(), "refused"), (Hang(), "no answer within 5 s")]
)
async def test_a_secondary_that_is_down_is_taken_on_trust(fresh, fault, why):
    await provision(fresh.broker, LABEL, 2)
    fresh.fail(fault, MANAGE)

    found = await usable_backlog(fresh.broker, LABEL, 2)

    assert [queue.name for queue in found.queues] == NAMES
    assert found.max_message_size is None
    assert not found.asked
    assert found.problems[0] == f"the secondary can't be asked: {why}"


async def test_an_entity_that_was_found_before_the_namespace_went_down_is_kept(fresh):
    await provision(fresh.broker, LABEL, 1)
    fresh.fail(Refuse(), MANAGE, entity=EntityPath(NAMES[1]))

    found = await usable_backlog(fresh.broker, LABEL, 3)

    assert [queue.name for queue in found.queues] == [*NAMES, "east/x-servicebus-transfer/2"]
    assert found.max_message_size is not None
    assert not found.asked


async def test_a_backlog_whose_queues_were_all_asked_about_was_asked(fresh):
    await provision(fresh.broker, LABEL, 1)

    assert (await usable_backlog(fresh.broker, LABEL, 1)).asked


async def test_a_pair_without_extensions_needs_the_usual_backlog_queues():
    options = PairOptions(label=LABEL, backlog_queues=2)

    assert [queue.path.name for queue in backlog_queues(options)] == NAMES
    assert [path.name for path in backlog_paths(options)] == NAMES
    assert (further_queues(options), depends_on_primary(options)) == ([], False)


async def test_without_the_right_to_manage_a_probe_decides(fresh):
    await provision(fresh.broker, LABEL, 1)
    fresh.fail(refuse(NotAuthorized, "no"), MANAGE)

    found = await usable_backlog(fresh.broker, LABEL, 2)

    assert [queue.name for queue in found.queues] == NAMES[:1]
    assert NAMES[1] in found.problems[0]


@pytest.mark.parametrize("fault", [Refuse(), Hang()])
async def test_a_probe_that_says_nothing_is_trusted(fresh, fault):
    fresh.fail(refuse(NotAuthorized, "no"), MANAGE)
    fresh.fail(fault, PROBE)

    with trio.fail_after(60.0):
        found = await usable_backlog(fresh.broker, LABEL, 2)

    assert [queue.name for queue in found.queues] == NAMES


async def test_credentials_that_cant_even_send_are_an_error(fresh):
    fresh.fail(refuse(NotAuthorized, "no"))

    with pytest.raises(NotAuthorized):
        await usable_backlog(fresh.broker, LABEL, 2)


@pytest.mark.parametrize("legacy", [False, True])
async def test_a_queue_as_we_or_the_legacy_client_make_it_raises_no_doubts(legacy):
    properties = backlog.properties(legacy=legacy)

    assert doubts(EntityInfo(path=QUEUE, properties=properties), USUAL) == []


@pytest.mark.parametrize(
    ("field", "value", "doubt"),
    [
        ("requires_session", True, "it requires sessions"),
        ("requires_duplicate_detection", True, "it drops what it takes for duplicates"),
        ("forward_to", "elsewhere", "it forwards its messages"),
        ("default_time_to_live", timedelta(days=1), "its messages expire"),
        ("auto_delete_on_idle", timedelta(days=1), "it is deleted when idle"),
        ("lock_duration", timedelta(seconds=4), "its lock is shorter than 5 s"),
        (
            "max_delivery_count",
            10,
            "it moves messages to its dead letters after 10 deliveries",
        ),
        ("status", EntityStatus.SEND_DISABLED, "its status is SendDisabled"),
    ],
)
async def test_each_property_that_may_lose_messages_is_a_doubt_of_its_own(field, value, doubt):
    legacy = {"max_delivery_count": 2147483647, field: value}

    assert doubts(EntityInfo(path=QUEUE, properties=QueueProperties(**legacy)), USUAL) == [doubt]


@pytest.mark.parametrize(
    ("requires_session", "found"), [(True, []), (False, ["it doesn't require sessions"])]
)
@pytest.mark.parametrize("is_backlog", [True, False])
async def test_a_queue_that_needs_sessions_must_require_them(requires_session, found, is_backlog):
    properties = attrs.evolve(backlog.QUEUE_PROPERTIES, requires_session=requires_session)
    wanted = attrs.evolve(WITH_SESSIONS, is_backlog=is_backlog)

    assert doubts(EntityInfo(path=QUEUE, properties=properties), wanted) == found


async def test_a_queue_without_messages_of_clients_may_lose_its_own():
    properties = attrs.evolve(backlog.QUEUE_PROPERTIES, default_time_to_live=timedelta(days=1))
    wanted = attrs.evolve(USUAL, is_backlog=False)

    assert doubts(EntityInfo(path=QUEUE, properties=properties), wanted) == []


async def test_a_lock_of_five_seconds_is_long_enough():
    properties = attrs.evolve(backlog.QUEUE_PROPERTIES, lock_duration=timedelta(seconds=5))

    assert doubts(EntityInfo(path=QUEUE, properties=properties), USUAL) == []
