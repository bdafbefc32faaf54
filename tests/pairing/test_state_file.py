"""The state file. On the real clock where it is written, as that happens in a thread."""

import json
import os
from datetime import UTC, datetime, timedelta

import attrs
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from gateway.capabilities import send_accepted_by
from gateway.domain.entity import EntityPath
from gateway.domain.errors import Unavailable
from gateway.domain.events.gateway import StateNotSaved, StateSaved
from gateway.domain.failover import State
from gateway.domain.identity import Identity
from gateway.domain.message import AcceptedBy
from gateway.domain.operators.control import Action, Operator, Order
from gateway.domain.operators.given_orders import GivenOrder
from gateway.pairing.entity_cache import KnownEntity
from gateway.pairing.entity_record import EntityState
from gateway.pairing.records.order_book import OrderBook
from gateway.pairing.state_file import SavedState, StateFile, StateFileError, build, parse
from tests.harness.faults import Refuse
from tests.harness.links import give_link, needs_root
from tests.pairing.harness import BILLS, ORDERS, Timed, control_of, message, virtual_time

SAVED = SavedState(
    states=(
        EntityState(
            entity=EntityPath("Orders/new"),
            state=State.PINNED,
            since=datetime(2026, 11, 21, 12, 30, tzinfo=UTC),
            reason="an operator said so",
        ),
    ),
    known=(
        KnownEntity(entity=BILLS),
        KnownEntity(entity=ORDERS, requires_session=True, max_message_size=262144),
    ),
)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "var" / "state.json"


QUICKLY = {"between_saves": 0.0, "retry": 0.01}


def file_of(harness, pair, path, **pauses):
    return StateFile(
        path=path,
        states=pair.states,
        entity_cache=pair.entity_cache,
        destination=pair.destination,
        observer=harness.events,
        **pauses,
    )


async def saved(path, condition):
    """The content of the file, as soon as the condition holds."""
    with trio.fail_after(30):
        while True:
            if path.is_file() and condition(found := parse(path.read_bytes())):
                return found
            await trio.sleep(0.002)


def test_a_built_state_can_be_read():
    assert parse(build(SAVED)) == SAVED


def test_the_case_of_a_name_is_kept():
    assert parse(build(SAVED)).states[0].entity.name == "Orders/new"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[" * 100_000,
        b"\xff",
        b"[]",
        b"{}",
        b'{"version": 3}',
        b'{"version": 2, "states": [{}]}',
        b'{"version": 2, "states": [{"entity": 7}]}',
        b'{"version": 2, "known": "x"}',
        b'{"version": 2, "known": 7}',
        b'{"version": 2, "known": [null]}',
        b'{"version": 2, "known": [{"entity": "a", "max_message_size": "x"}]}',
        b'{"version": 2, "known": [{"entity": "a", "max_message_size": []}]}',
        build(SAVED).replace(b"pinned", b"unheard of"),
        build(SAVED).replace(b"2026-11", b"2026-13"),
    ],
)
async def test_a_file_that_isnt_understood_is_refused_and_not_overwritten(harness, path, content):
    path.parent.mkdir()
    path.write_bytes(content)
    pair = harness.parts().assemble()
    state = file_of(harness, pair, path)

    with pytest.raises(StateFileError, match=r"state\.json"):
        state.restore()

    assert path.read_bytes() == content


def test_a_file_of_version_1_is_read() -> None:
    entry = {"entity": "orders", "state": "secondary", "since": "2026-11-24T10:00:00+00:00"}
    known = [{"entity": "bills"}]
    old = {"version": 1, "standings": [{**entry, "reason": "refused"}], "known": known}
    found = parse(json.dumps(old).encode())

    assert [(each.entity.name, each.state) for each in found.states] == [
        ("orders", State.SECONDARY)
    ]
    assert [each.entity.name for each in found.known] == ["bills"]
    assert found.version == 2


async def test_a_pair_doesnt_start_over_a_file_of_another_version(harness, path):
    path.parent.mkdir()
    path.write_text('{"version": 3}')
    pair = attrs.evolve(harness.parts(), state=path).assemble()

    with pytest.raises(StateFileError, match="version 2 expected, found 3"):
        await pair.run()


async def test_no_file_is_an_empty_one(harness, path):
    pair = harness.parts().assemble()

    file_of(harness, pair, path).restore()

    assert pair.states.troubled() == []
    assert pair.entity_cache.all() == []


async def test_each_change_is_saved(harness, path):
    pair = await harness.pair(state=path, failover_interval=0.0)
    pair.states.force_over(ORDERS)
    pair.entity_cache.store(KnownEntity(entity=BILLS))

    found = await saved(path, lambda state: state.states and state.known)

    assert [(each.entity, each.state) for each in found.states] == [(ORDERS, State.PINNED)]
    assert found.known == (KnownEntity(entity=BILLS),)


async def test_an_entity_that_only_fails_for_a_while_isnt_saved(harness, path):
    pair = await harness.pair()
    await harness.nursery.start(file_of(harness, pair, path, **QUICKLY).run)
    pair.states.failed(pair.states.begin(ORDERS), Unavailable("out"))

    found = await saved(path, lambda state: True)

    assert found.states == ()


async def test_dates_in_the_file_are_wall_dates(harness, path):
    pair = await harness.pair()
    await harness.nursery.start(file_of(harness, pair, path, **QUICKLY).run)
    pair.states.force_over(ORDERS)

    found = await saved(path, lambda state: state.states)

    since = json.loads(path.read_bytes())["states"][0]["since"]
    assert datetime.fromisoformat(since) == found.states[0].since
    assert since.endswith("+00:00")


async def test_a_restart_in_an_outage_diverts_at_once(harness, path):
    first = harness.parts(failover_interval=0.0).assemble()
    harness.primary.fail(Refuse())
    await first.broker.send(ORDERS, [message()])
    assert await file_of(harness, first, path).save()

    second = await harness.pair(state=path, failover_interval=0.0)
    before = harness.primary.sends()
    accepted_by = await send_accepted_by(second.broker, ORDERS, [message("m2")])

    assert accepted_by is AcceptedBy.BACKLOG
    assert harness.primary.sends() == before


@virtual_time
@pytest.mark.parametrize("days", [-3650, 3650], ids=["back", "forward"])
async def test_a_clock_that_is_set_by_years_between_two_runs_holds_no_entity_on_the_backlog(
    harness, path, disk, days
):
    first = harness.parts(failover_interval=0.0).assemble()
    harness.primary.fail(Refuse())
    await first.broker.send(ORDERS, [message()])
    assert await file_of(harness, first, path).save()
    harness.clock.skew = timedelta(days=days)

    second = await harness.pair(state=path, failover_interval=0.0)
    diverted = await send_accepted_by(second.broker, ORDERS, [message("m2")])
    harness.primary.heal()
    await trio.sleep(40)
    returned = await send_accepted_by(second.broker, ORDERS, [message("m3")])
    await trio.sleep(40)
    last = await send_accepted_by(second.broker, ORDERS, [message("m4")])

    assert (diverted, returned, last) == (
        AcceptedBy.BACKLOG,
        AcceptedBy.PRIMARY,
        AcceptedBy.PRIMARY,
    )


@pytest.mark.parametrize("before", [None, Identity("store", "former")])
@pytest.mark.parametrize("quickly", [True, False])
async def test_a_primary_that_has_answered_before_the_start_is_saved(
    harness, path, before, quickly
):
    if before is not None:
        path.parent.mkdir()
        path.write_bytes(build(attrs.evolve(SAVED, primary=before)))
    pair = harness.parts().assemble()
    pair.destination.identity = Identity("store", "new")
    state = file_of(harness, pair, path, **QUICKLY if quickly else {})
    state.restore()

    async with trio.open_nursery() as nursery:
        await nursery.start(state.run)
        if quickly:  # otherwise at the end
            await saved(path, lambda found: found.primary == Identity("store", "new"))
        nursery.cancel_scope.cancel()

    assert parse(path.read_bytes()).primary == Identity("store", "new")


async def test_a_file_is_replaced_whole(harness, path):
    pair = harness.parts().assemble()
    state = file_of(harness, pair, path)
    await state.save()
    old = path.stat().st_ino
    reader = path.open("rb")

    pair.states.force_over(ORDERS)
    await state.save()

    with reader:
        assert parse(reader.read()).states == ()  # a reader of the old file reads all of it
    assert path.stat().st_ino != old
    assert [each.name for each in path.parent.iterdir()] == ["state.json"]


async def test_only_the_owner_may_read_it(harness, path):
    await file_of(harness, harness.parts().assemble(), path).save()

    assert path.stat().st_mode & 0o077 == 0
    assert path.parent.stat().st_mode & 0o077 == 0


async def test_without_a_thread_to_write_it_is_told(harness, path, monkeypatch):
    async def no_thread(*_):
        await trio.lowlevel.checkpoint()
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(trio.to_thread, "run_sync", no_thread)

    assert not await file_of(harness, harness.parts().assemble(), path).save()
    [told] = harness.events.of(StateNotSaved)
    assert "can't start new thread" in told.reason


async def test_a_file_that_cant_be_written_is_told_and_tried_again(harness, path):
    path.parent.write_text("a file where the folder should be")
    async with trio.open_nursery() as nursery:
        pair = harness.parts().assemble()
        await nursery.start(file_of(harness, pair, path, **QUICKLY).run)
        pair.states.force_over(ORDERS)
        with trio.fail_after(30):
            told = await harness.events.first(StateNotSaved)

        path.parent.unlink()
        found = await saved(path, lambda state: state.states)
        nursery.cancel_scope.cancel()

    assert str(path) in told.reason
    assert found.states[0].state is State.PINNED


async def test_a_change_just_before_the_end_is_saved(harness, path):
    async with trio.open_nursery() as nursery:
        pair = harness.parts().assemble()
        await nursery.start(file_of(harness, pair, path).run)
        pair.states.force_over(ORDERS)
        await trio.sleep(0.01)
        nursery.cancel_scope.cancel()

    assert parse(path.read_bytes()).states[0].state is State.PINNED


class Disk:
    """Writes at once instead of in a thread, so that time may be virtual; fails on command."""

    def __init__(self):
        self.writes = []
        self.broken = False
        self.seconds = 0.0

    async def run_sync(self, write, path, data):
        self.writes.append(trio.current_time())
        await trio.sleep(self.seconds)
        if self.broken:
            raise OSError(28, "no space left on device")
        write(path, data)


@pytest.fixture
def disk(monkeypatch):
    disk = Disk()
    monkeypatch.setattr(trio.to_thread, "run_sync", disk.run_sync)
    return disk


@virtual_time
async def test_a_burst_of_changes_is_one_write(harness, path, disk):
    pair = await harness.pair(state=path)
    started = trio.current_time()
    for number in range(10):
        pair.entity_cache.store(KnownEntity(entity=EntityPath(f"entity-{number}")))
        await trio.sleep(0.015)

    await trio.sleep(60.0)

    assert [at - started for at in disk.writes] == [pytest.approx(0.2)]
    assert len(parse(path.read_bytes()).known) == 10
    assert harness.events.of(StateSaved) == []  # no save has failed before


@virtual_time
async def test_a_change_while_a_file_is_written_is_written_too(harness, path, disk):
    disk.seconds = 1.0
    pair = await harness.pair(state=path)
    pair.entity_cache.store(KnownEntity(entity=ORDERS))
    await trio.sleep(0.7)
    pair.entity_cache.store(KnownEntity(entity=BILLS))

    await trio.sleep(60.0)

    assert len(disk.writes) == 2
    assert {each.entity for each in parse(path.read_bytes()).known} == {ORDERS, BILLS}


@virtual_time
async def test_a_file_that_cant_be_written_is_tried_again_after_five_seconds(harness, path, disk):
    disk.broken = True
    pair = await harness.pair(state=path)
    pair.states.force_over(ORDERS)
    await trio.sleep(4.0)
    failed = len(disk.writes)
    disk.broken = False

    await trio.sleep(60.0)

    assert failed == 1
    assert [disk.writes[1] - disk.writes[0]] == [pytest.approx(5.2)]
    assert len(disk.writes) == 2
    [told] = harness.events.of(StateNotSaved)
    assert told.reason == f"{path}: no space left on device"
    await pair.state.save()
    assert [each.file for each in harness.events.of(StateSaved)] == [str(path)]


@virtual_time
async def test_the_last_save_takes_no_longer_than_two_seconds(harness, path, disk):
    disk.seconds = 60.0
    pair = harness.parts().assemble()
    with Timed() as timed:
        async with trio.open_nursery() as nursery:
            await nursery.start(file_of(harness, pair, path).run)
            pair.states.force_over(ORDERS)
            await trio.sleep(0.1)
            nursery.cancel_scope.cancel()

    assert timed.seconds == pytest.approx(2.1)


@virtual_time
@pytest.mark.parametrize("seconds", [0.0, 0.1, 0.2, 0.3, 3.0])
async def test_a_change_is_saved_whenever_the_end_comes_after_it(harness, path, disk, seconds):
    """
    The end comes before the change was seen, while more may follow, in the write, and after it.
    """
    disk.seconds = 0.2
    async with trio.open_nursery() as nursery:
        pair = harness.parts().assemble()
        await nursery.start(file_of(harness, pair, path).run)
        await wait_all_tasks_blocked()
        pair.states.force_over(ORDERS)
        if seconds:
            await trio.sleep(seconds)
        nursery.cancel_scope.cancel()

    assert parse(path.read_bytes()).states[0].state is State.PINNED


@virtual_time
@pytest.mark.parametrize("primary", [None, Identity("store", "former")])
async def test_without_a_change_nothing_is_written(harness, path, disk, primary):
    path.parent.mkdir()
    path.write_bytes(build(attrs.evolve(SAVED, primary=primary)))
    pair = harness.parts().assemble()
    state = file_of(harness, pair, path)
    state.restore()
    async with trio.open_nursery() as nursery:
        await nursery.start(state.run)
        await trio.sleep(60.0)
        nursery.cancel_scope.cancel()

    assert disk.writes == []
    assert pair.destination.identity == primary


@virtual_time
async def test_a_saved_state_is_not_written_again_in_the_end(harness, path, disk):
    async with trio.open_nursery() as nursery:
        pair = harness.parts().assemble()
        await nursery.start(file_of(harness, pair, path).run)
        pair.states.force_over(ORDERS)
        await trio.sleep(60.0)
        nursery.cancel_scope.cancel()

    assert len(disk.writes) == 1


@virtual_time
async def test_a_file_that_is_held_is_saved_and_then_left_to_a_successor(harness, path, disk):
    pair = await harness.pair(state=path)
    pair.entity_cache.store(KnownEntity(entity=ORDERS))

    await pair.state.hold()
    pair.entity_cache.store(KnownEntity(entity=BILLS))
    await trio.sleep(60.0)
    assert await pair.state.save()
    held = parse(path.read_bytes()).known
    pair.state.go_on()
    await trio.sleep(60.0)

    assert {each.entity for each in held} == {ORDERS}
    assert {each.entity for each in parse(path.read_bytes()).known} == {ORDERS, BILLS}


@virtual_time
async def test_a_state_that_was_known_before_a_restart_is_known_after_it(harness, path, disk):
    path.parent.mkdir()
    path.write_bytes(build(SAVED))

    pair = await harness.pair(state=path)

    assert tuple(pair.entity_cache.all()) == SAVED.known
    assert pair.states.state_of(EntityPath("Orders/new")) is State.PINNED


@virtual_time
async def test_orders_survive_a_restart_and_end_while_the_gateway_is_down(harness, path, disk):
    tomorrow = harness.after(86_400)
    async with trio.open_nursery() as nursery:
        pair = attrs.evolve(harness.parts(), state=path).assemble()
        await nursery.start(pair.run)
        control = control_of(harness, pair, harness.make_syphon(pauses=pair.pauses))
        for order in (
            Order(action=Action.FAILOVER, targets=("orders/*",), reason="kept"),
            Order(action=Action.FAILOVER, targets=("bills",), until=harness.after(60)),
            Order(action=Action.PAUSE, until=tomorrow),
        ):
            control.execute(order, Operator(name="ann", peer="unknown"))
        nursery.cancel_scope.cancel()
    await trio.sleep(120)

    pair = await harness.pair(state=path)
    control = control_of(harness, pair)
    await harness.nursery.start(control.run)

    state = control.state(["bills", "orders/eu"])
    assert [(each.target, each.reason) for each in state.pins] == [("orders/*", "kept")]
    assert [(each.target, each.until) for each in state.pauses] == [("*", tomorrow)]
    assert state.entities == {"bills": "primary", "orders/eu": "pinned"}


async def test_a_file_that_cant_be_read_is_told_with_its_name(harness, path):
    path.mkdir(parents=True)

    with pytest.raises(StateFileError, match=r"state\.json: Is a directory"):
        file_of(harness, harness.parts().assemble(), path).restore()


@needs_root
async def test_a_file_behind_a_link_of_another_user_is_neither_read_nor_written(
    harness, path, tmp_path
):
    (tmp_path / "disk").mkdir()
    theirs = tmp_path / "disk" / path.name
    theirs.write_bytes(build(SAVED))
    give_link(path.parent, "disk")
    state = file_of(harness, harness.parts().assemble(), path)
    problem = f"{path}: {path.parent}: this symbolic link belongs to another user (12345)"

    with pytest.raises(StateFileError) as caught:
        state.restore()
    assert str(caught.value).startswith(problem)
    assert not await state.save()

    [told] = harness.events.of(StateNotSaved)
    assert told.reason.startswith(problem)
    assert list(theirs.parent.iterdir()) == [theirs]
    assert parse(theirs.read_bytes()) == SAVED


@needs_root
async def test_a_file_that_is_a_link_of_another_user_is_not_read(harness, path):
    path.parent.mkdir()
    path.with_name("theirs").write_bytes(build(SAVED))
    give_link(path, "theirs")

    with pytest.raises(StateFileError, match="belongs to another user"):
        file_of(harness, harness.parts().assemble(), path).restore()


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"{", "JSON expected: Expecting property name"),
        (b"[]", "version 2 expected, found None"),
        (b'{"version": 2, "known": [{}]}', r"the fields don't match: .*entity"),
    ],
)
def test_a_mistake_in_a_file_is_told(content, problem):
    with pytest.raises(StateFileError, match=problem):
        parse(content)


async def test_a_file_of_half_a_write_is_replaced(harness, path):
    path.parent.mkdir()
    path.with_name("state.json.new").write_bytes(bytes(100_000))

    assert await file_of(harness, harness.parts().assemble(), path).save()

    assert parse(path.read_bytes()) == SavedState()
    assert [each.name for each in path.parent.iterdir()] == ["state.json"]


async def test_no_file_stays_open_after_a_save(harness, path):
    state = file_of(harness, harness.parts().assemble(), path)
    await state.save()
    before = len(os.listdir("/proc/self/fd"))

    await state.save()

    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("name", ["a/b/state.json", "state.json"])
async def test_the_folder_is_made_as_deep_as_it_takes(harness, tmp_path, name):
    path = tmp_path / name

    assert await file_of(harness, harness.parts().assemble(), path).save()

    assert path.is_file()
    assert path.stat().st_mode & 0o777 == 0o600


async def test_orders_given_here_and_elsewhere_survive_a_restart(harness, path):
    def book() -> OrderBook:
        return OrderBook(process="p1", clock=lambda: datetime.now(UTC))

    before = book()
    before.give(Order(action=Action.FAILOVER, targets=("orders",), reason="m"), "ann")
    [pin] = before.own
    elsewhere = attrs.evolve(pin, process="p2", targets=("bills",))
    before.learn([elsewhere])
    parts = attrs.evolve(harness.parts(), state=path, book=before)
    await parts.assemble().state.save()

    after = book()
    pair = attrs.evolve(harness.parts(), state=path, book=after).assemble()
    pair.state.restore()

    assert (after.own, after.others) == ((pin,), (elsewhere,))
    assert [each.target for each in pair.states.pins] == ["orders", "bills"]


async def test_pins_in_a_file_of_an_earlier_version_become_orders_given_here(harness, path):
    pair = attrs.evolve(harness.parts(), state=path).assemble()
    control = control_of(harness, pair)
    ann = Operator(name="ann", peer="here")
    control.execute(Order(action=Action.FAILOVER, targets=("*",)), ann)
    control.execute(Order(action=Action.FAILBACK, targets=("bills",)), ann)
    await pair.state.save()
    book = OrderBook(process="p1", clock=harness.clock)

    later = attrs.evolve(harness.parts(), state=path, book=book).assemble()
    later.state.restore()

    assert [each.covers("bills") for each in book.in_force().pins] == [False]
    assert [each.covers("orders") for each in book.in_force().pins] == [True]


@pytest.mark.parametrize(
    ("seconds", "holds"), [(None, False), (-1.0, False), (0.0, False), (1.0, True)]
)
async def test_orders_of_others_hold_after_a_restart_until_their_date(
    harness, path, seconds, holds
):
    now = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
    order = GivenOrder(
        revision=1,
        process="p2",
        action=Action.PAUSE,
        targets=("bills",),
        operator="bob",
        at=now,
    )
    until = None if seconds is None else now + timedelta(seconds=seconds)
    path.parent.mkdir()
    path.write_bytes(build(attrs.evolve(SAVED, orders=(), followed=(order,), followed_until=until)))
    book = OrderBook(process="p1", clock=lambda: now)
    pair = attrs.evolve(harness.parts(), state=path, book=book).assemble()
    pair.state.restore()

    assert book.others == ((order,) if holds else ())
    assert [each.target for each in pair.pauses.overrides] == (["bills"] if holds else [])


# Names that extensions keep


@attrs.define
class Names:
    """An extension that knows names in the end."""

    known: tuple[str, ...] = ()
    key: str = "names"
    restored: list[tuple[str, ...]] = attrs.field(factory=list)

    def restore(self, names):
        self.restored.append(tuple(names))

    def names(self):
        return self.known


async def restarted(harness, path, **keys):
    """The names that an extension gets back from the file."""
    names = Names(**keys)
    file_of(harness, harness.parts().assemble(), path, kept=[names]).restore()
    return names.restored


async def ended(harness, path, names):
    """The state file of a process that has ended in good order."""
    state = file_of(harness, harness.parts().assemble(), path, kept=[names])
    async with trio.open_nursery() as nursery:
        await nursery.start(state.run)
        nursery.cancel_scope.cancel()
    return state


@virtual_time
async def test_names_that_an_extension_knows_in_the_end_are_there_after_a_restart(
    harness, path, disk
):
    await ended(harness, path, Names(("a", "b")))

    assert json.loads(path.read_bytes())["names"] == ["a", "b"]
    assert await restarted(harness, path) == [("a", "b")]
    assert await restarted(harness, path, key="of another") == [()]


@virtual_time
async def test_names_that_an_extension_knows_before_the_end_are_not_told_after_a_restart(
    harness, path, disk
):
    pair = harness.parts().assemble()
    await file_of(harness, pair, path, kept=[Names(("a", "b"))]).save()

    assert await restarted(harness, path) == [()]


@virtual_time
async def test_an_extension_learns_nothing_from_a_file_in_doubt(harness, path, disk):
    first = harness.parts().assemble()
    first.entity_cache.store(KnownEntity(entity=BILLS))
    state = file_of(harness, first, path, kept=[Names(("a",))])
    await state.save()
    await state.doubt()
    names, second = Names(), harness.parts().assemble()
    file_of(harness, second, path, kept=[names]).restore()

    was_there = path.exists()
    await file_of(harness, second, path).save()

    assert not was_there
    assert [each.entity for each in second.entity_cache.all()] == [BILLS]
    assert names.restored == []
    assert [each.name for each in path.parent.iterdir()] == ["state.json"]


@virtual_time
async def test_a_file_that_cannot_be_put_in_doubt_is_told(harness, path, disk):
    disk.broken = True
    await file_of(harness, harness.parts().assemble(), path).doubt()

    assert [str(path) in each.reason for each in harness.events.of(StateNotSaved)] == [True]


def test_a_file_has_a_line_for_each_field_so_that_people_can_read_it():
    assert b'\n "version": 2,\n' in build(SAVED)
