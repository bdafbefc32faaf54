"""
The same operations on a namespace of our own and on the naive one: after each the same answer, and
the same messages in the same order, in each place. Durations end in fractions of a second and
operations happen at whole ones, so that no two events happen at the same moment, whose order is
undefined.
"""

import itertools
from collections.abc import Callable, Coroutine, Sequence
from datetime import timedelta
from typing import Any, ClassVar

import attrs
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
)

from gateway.domain.clocks.times import to_date
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import BrokerError
from gateway.domain.message import DEAD_LETTER_REASON, Delivery, Message, ReceiveMode
from gateway.domain.topics.filters import Rule, TrueFilter
from gateway.domain.topics.topology import SubscriptionProperties, TopicProperties, as_queue
from gateway.store.engine.deliveries import TakenRow
from gateway.store.engine.records import DEFERRED_OF, Row, State
from gateway.store.local.receiver import to_delivery
from gateway.wire.amqp.message import encode_message
from tests.brokers.drawn import (
    BATCHES,
    BODIES,
    DELAYS,
    ENDINGS,
    EVERYTHING,
    FILTERS,
    INDEX,
    PROPERTIES,
    QUEUES,
    SECOND,
    SETTLEMENTS,
    SUB_QUEUES,
    SUBSCRIPTIONS,
    TOPIC,
    after,
    mostly,
)
from tests.brokers.naive import (
    ACTIVE,
    DEAD,
    DEAD_DEFERRED,
    DEFERRED,
    SCHEDULED,
    TRANSFER,
    TRANSFER_DEFERRED,
    Grip,
    Mail,
    Naive,
)
from tests.brokers.stepped import START, SteppedBroker, SteppedEmbedded, done

# The states that each count of an entity counts.
COUNTED = (
    (ACTIVE,),
    (SCHEDULED,),
    (DEFERRED,),
    (DEAD, DEAD_DEFERRED),
    (TRANSFER, TRANSFER_DEFERRED),
)
STATES = {
    ACTIVE: State.ACTIVE,
    SCHEDULED: State.SCHEDULED,
    DEFERRED: State.DEFERRED,
    DEAD: State.DEAD,
    TRANSFER: State.TRANSFER,
}


@attrs.define(eq=False)
class Held:
    """A delivery that a receiver holds: its lock as the model and the broker know it."""

    place: str
    grip: Grip
    session: "Held | None" = None


class Machine(RuleBasedStateMachine):
    """A machine in memory; the embedded one is below."""

    kind: ClassVar[Callable[[], SteppedBroker]] = SteppedBroker
    states: ClassVar[int] = 0  # how many there were, over all runs
    runs: ClassVar[int] = 0

    def __init__(self) -> None:
        super().__init__()
        Machine.runs += 1
        self.broker = self.make()
        self.model = Naive(START)
        self.held: list[Held] = []
        self.sessions: list[Held] = []
        self.agrees = True
        self.bodies = itertools.count()

    def make(self) -> SteppedBroker:
        return SteppedBroker()

    def teardown(self) -> None:
        if self.agrees:
            self.look()
        self.broker.close()

    # --- both at once

    def both(
        self, real: Coroutine[Any, Any, Any] | Callable[[], Any], naive: Callable[[], Any]
    ) -> tuple[Any, Any] | None:
        """Do it on both; None where both refuse it in the same way."""
        Machine.states += 1
        self.agrees = False
        expected = outcome(naive)
        found = outcome(real if callable(real) else lambda: done(real))
        refused = isinstance(expected, type), isinstance(found, type)
        if any(refused):
            assert found == expected, (found, expected)
        self.agrees = True
        if self.watches:
            self.look()
        return None if any(refused) else (found, expected)

    def on_queue(self, name: str, work: Callable[..., Any]) -> Callable[[], Any]:
        return lambda: done(self.broker.on_queue(EntityPath(name), work))

    # --- entities

    @initialize(
        watches=st.booleans(),
        again=mostly(False, True),
        queues=st.lists(PROPERTIES[QueueProperties], min_size=1, max_size=2),
        topic=st.none() | PROPERTIES[TopicProperties],
        subscription=PROPERTIES[SubscriptionProperties],
        rule_filter=FILTERS,
        batch=BATCHES,
    )
    def begin(
        self,
        watches: bool,
        again: bool,
        queues: Any,
        topic: Any,
        subscription: Any,
        rule_filter: Any,
        batch: list[Message],
    ) -> None:
        self.watches = watches
        self.again = again  # whether what was settled is settled again
        for name, properties in zip(QUEUES, queues, strict=False):
            self.create(name, properties, rule_filter)
        if topic is not None:
            self.create(TOPIC, topic, rule_filter)
            self.create(SUBSCRIPTIONS[0], subscription, rule_filter)
            self.create(SUBSCRIPTIONS[1], SubscriptionProperties(), TrueFilter())
            self.send(TOPIC, batch, None)
        self.send(QUEUES[0], batch, None)

    @rule(
        data=st.data(),
        what=st.sampled_from(["create", "update", "update", "rule", "delete"]),
        name=st.sampled_from(EVERYTHING),
    )
    def manage(self, data: st.DataObject, what: str, name: str) -> None:
        """
        Create, update or delete an entity, or put a rule: all in one rule, so that it isn't drawn
        often.
        """
        if what == "create":
            self.create(name, data.draw(PROPERTIES[kind_of(name)]), data.draw(FILTERS))
        elif what == "update":
            self.update(data, name, self.version_of(name, data.draw(mostly(None, 0, 1))))
        elif what == "delete":
            self.delete(name)
        else:
            name = data.draw(st.sampled_from(SUBSCRIPTIONS))
            self.put_rule(name, data.draw(st.sampled_from("pq")), data.draw(FILTERS))

    def create(self, name: str, properties: Any, rule_filter: Any) -> None:
        broker, path = self.broker, EntityPath(name)
        call: Any
        if path.is_subscription:
            made = Rule(name="$Default", filter=rule_filter)
            call = broker.create_subscription(path.topic, path.subscription, properties, made)
        elif name == TOPIC:
            call = broker.create_topic(path, properties)
        else:
            call = broker.create_queue(path, properties)
        self.both(call, lambda: self.model.create(name, properties, rule_filter))

    def version_of(self, name: str, changes_ago: int | None) -> int | None:
        place = self.model.places.get(name)
        if changes_ago is None or place is None:
            return changes_ago
        return place.version - changes_ago

    def update(self, data: st.DataObject, name: str, version: int | None) -> None:
        properties = data.draw(PROPERTIES[kind_of(name)])
        old = self.model.places.get(name)
        if old is not None and not data.draw(mostly(False, True)):
            properties = with_fixed(properties, old)
        self.change(name, properties, version)

    def change(self, name: str, properties: Any, version: int | None) -> None:
        broker, path = self.broker, EntityPath(name)
        call: Any
        if path.is_subscription:
            call = broker.update_subscription(
                path.topic, path.subscription, properties, if_version=version
            )
        elif name == TOPIC:
            call = broker.update_topic(path, properties, if_version=version)
        else:
            call = broker.update_queue(path, properties, if_version=version)
        self.both(call, lambda: self.model.update(name, properties, version))

    def delete(self, name: str) -> None:
        path = EntityPath(name)
        call: Any
        if path.is_subscription:
            call = self.broker.delete_subscription(path.topic, path.subscription)
        elif name == TOPIC:
            call = self.broker.delete_topic(path)
        else:
            call = self.broker.delete_queue(path)
        self.both(call, lambda: self.model.delete(name))

    def put_rule(self, name: str, label: str, new: Any) -> None:
        path, made = EntityPath(name), Rule(name=label, filter=new)
        old = self.model.places.get(name)
        there = old is not None and label in (old.rules or {})
        put = self.broker.update_rule if there else self.broker.create_rule
        self.both(
            put(path.topic, path.subscription, made),
            lambda: self.model.put_rule(name, label, new),
        )

    # --- in

    @rule(name=st.sampled_from((*QUEUES, TOPIC)), batch=BATCHES, delay=DELAYS)
    def send(self, name: str, batch: list[Message], delay: timedelta | None) -> None:
        messages = self.stamped(batch, delay)
        name = name if name in self.model.places else QUEUES[0]
        self.both(
            self.broker.send(EntityPath(name), messages),
            lambda: self.model.send(name, sized(messages)),
        )

    @rule(name=st.sampled_from((*QUEUES, TOPIC)), batch=BATCHES)
    def send_some(self, name: str, batch: list[Message]) -> None:
        self.send(name, batch, None)

    @rule(name=st.sampled_from((*QUEUES, TOPIC)), batch=BATCHES, delay=after(1.25, 8.25, 50.25))
    def schedule(self, name: str, batch: list[Message], delay: timedelta) -> None:
        name = name if name in self.model.places else QUEUES[0]
        messages = self.stamped(batch, delay)
        answers = self.both(
            self.broker.schedule(EntityPath(name), messages),
            lambda: self.model.send(name, sized(messages)),
        )
        if answers is not None:
            for number, mail in zip(*answers, strict=True):
                self.note(mail, number)

    @precondition(lambda self: self.model.has(SCHEDULED))
    @rule(name=st.sampled_from((*QUEUES, TOPIC)), which=st.sets(INDEX, min_size=1, max_size=2))
    def cancel(self, name: str, which: set[int]) -> None:
        mails = self.pick(name, SCHEDULED, which)
        self.both(
            self.broker.cancel_scheduled(EntityPath(name), numbers(mails)),
            lambda: self.model.cancel(name, orders(mails)),
        )

    def there(self, name: str, state: str = "") -> str:
        """
        Return `name`, or another entity if only that has messages in `state`: fewer steps are in
        vain.
        """
        places = [p for p in self.model.places.values() if not state or p.of(state)]
        if state == ACTIVE:
            places = [p for p in places if not p.requires_session and not p.forward_to]
        keys = [place.key for place in places if not (state and place.is_topic)]
        return name if name in keys or not keys else keys[0]

    def stamped(self, batch: list[Message], delay: timedelta | None) -> list[Message]:
        """Messages, each with a unique name and its due date."""
        due = None
        if delay is not None:  # no two at once, whose order is undefined
            due = to_date(self.model.now) + delay + timedelta(milliseconds=next(self.bodies))
        return [
            attrs.evolve(
                message,
                properties={"name": next(self.bodies)},
                scheduled=due,
                body=BODIES[message.body],
            )
            for message in batch
        ]

    def pick(self, name: str, state: str, which: set[int]) -> list[Mail]:
        """
        Return messages by their place in the order; if there are none, a message that doesn't
        exist.
        """
        place = self.model.places.get(name)
        mails = [m for m in place.of(state) if m.number is not None] if place else []
        nobody = Mail(Message(), 0, -1, state, number=10**6)
        return (
            [mails[each] for each in {each % len(mails) for each in which}] if mails else [nobody]
        )

    # --- out

    @rule(
        name=st.sampled_from((*QUEUES, *SUBSCRIPTIONS)),
        state=SUB_QUEUES,
        limit=st.integers(1, 4),
        keep=mostly(True, False),
    )
    def acquire(self, name: str, state: str, limit: int, keep: bool) -> None:
        name = self.there(name, state)
        mode = ReceiveMode.PEEK_LOCK if keep else ReceiveMode.RECEIVE_AND_DELETE
        if state == DEAD and name in self.model.places:
            self.look_at(name)  # for the order
        self.took(
            name,
            self.on_queue(name, lambda queue, now: queue.receive(STATES[state], limit, mode, now)),
            lambda: self.model.take(name, state, limit, keep=keep),
        )

    @rule(name=st.sampled_from((*QUEUES, *SUBSCRIPTIONS)), limit=st.integers(1, 4))
    def take_some(self, name: str, limit: int) -> None:
        """
        `acquire` with the usual arguments, so that the most frequent operation is drawn twice as
        often.
        """
        self.acquire(name, ACTIVE, limit, True)

    @precondition(lambda self: self.sessions)
    @rule(which=INDEX, limit=st.integers(1, 4), keep=mostly(True, False))
    def take_of_session(self, which: int, limit: int, keep: bool) -> None:
        held = chosen(self.sessions, which)
        mode = ReceiveMode.PEEK_LOCK if keep else ReceiveMode.RECEIVE_AND_DELETE
        token = held.grip.token
        self.took(
            held.place,
            self.on_queue(held.place, lambda q, now: q.sessions.receive(token, limit, mode, now)),
            lambda: self.model.take(held.place, ACTIVE, limit, keep=keep, session=held.grip),
            held,
        )

    @precondition(lambda self: self.model.has(DEAD_DEFERRED))
    @rule(
        name=st.sampled_from((*QUEUES, *SUBSCRIPTIONS)),
        which=st.sets(INDEX, min_size=1, max_size=2),
        keep=mostly(True, False),
    )
    def take_deferred_dead_letters(self, name: str, which: set[int], keep: bool) -> None:
        name = self.there(name, DEAD_DEFERRED)
        mails = self.pick(name, DEAD_DEFERRED, which)
        mode = ReceiveMode.PEEK_LOCK if keep else ReceiveMode.RECEIVE_AND_DELETE
        wanted = numbers(mails)
        self.took(
            name,
            self.on_queue(name, lambda q, now: q.receive_deferred(wanted, mode, now, State.DEAD)),
            lambda: self.model.take_deferred(name, DEAD, orders(mails), keep=keep),
        )

    @precondition(lambda self: self.model.has(DEFERRED))
    @rule(
        name=st.sampled_from((*QUEUES, *SUBSCRIPTIONS)),
        which=st.sets(INDEX, min_size=1, max_size=2),
        keep=mostly(True, False),
        session=st.none() | INDEX,
    )
    def take_deferred(self, name: str, which: set[int], keep: bool, session: int | None) -> None:
        held = chosen(self.sessions, session) if session is not None and self.sessions else None
        name = held.place if held is not None else self.there(name, DEFERRED)
        mails = self.pick(name, DEFERRED, which)
        mode = ReceiveMode.PEEK_LOCK if keep else ReceiveMode.RECEIVE_AND_DELETE
        wanted = numbers(mails)
        if held is None:
            real = self.on_queue(name, lambda q, now: q.receive_deferred(wanted, mode, now))
        else:
            token = held.grip.token
            real = self.on_queue(
                name, lambda q, now: q.sessions.receive_deferred(token, wanted, mode, now)
            )
        grip = None if held is None else held.grip
        self.took(
            name,
            real,
            lambda: self.model.take_deferred(name, ACTIVE, orders(mails), keep=keep, session=grip),
            held,
        )

    def took(
        self, name: str, real: Any, naive: Callable[[], list[Mail]], session: Held | None = None
    ) -> None:
        answers = self.both(real, naive)
        if answers is None:
            return
        taken, mails = answers
        found = [to_delivery(each, self.broker.unpack(each.row.content), 0) for each in taken]
        told = [shown(each) for each in found], [expected(each) for each in mails]
        assert told[0] == told[1], told
        for delivery, mail in zip(found, mails, strict=True):
            assert (delivery.lock_token is not None) is (mail.grip is not None)
            self.note(mail, delivery.sequence_number)
            if mail.grip is not None:
                mail.grip.token = delivery.lock_token or ""
                self.held.append(Held(name, mail.grip, session))

    @precondition(lambda self: self.held)
    @rule(which=INDEX, how=SETTLEMENTS)
    def settle(self, which: int, how: Any) -> None:
        held = chosen(self.held, which)
        token, name = held.grip.token, held.place
        if held.session is None:
            real = self.on_queue(name, lambda queue, now: queue.settle(token, how, now))
            session = None
        else:
            session = held.session.grip
            holder = session.token
            real = self.on_queue(
                name, lambda queue, now: queue.sessions.settle(holder, token, how, now)
            )
        self.both(real, lambda: self.model.settle(name, held.grip, how, session))
        if not self.again:
            self.held.remove(held)

    @precondition(lambda self: self.held)
    @rule(how=SETTLEMENTS)
    def settle_last(self, how: Any) -> None:
        self.settle(len(self.held) - 1, how)

    @precondition(lambda self: any(held.session is None for held in self.held))
    @rule(which=INDEX)
    def renew(self, which: int) -> None:
        held = chosen([held for held in self.held if held.session is None], which)
        answers = self.both(
            self.on_queue(held.place, lambda queue, now: queue.renew(held.grip.token, now)),
            lambda: self.model.renew(held.place, held.grip),
        )
        assert answers is None or answers[0] == held.grip.until

    @precondition(lambda self: any(held.session is None for held in self.held))
    @rule(which=INDEX)
    def renew_in_time(self, which: int) -> None:
        """Longer than the first lock."""
        held = chosen([held for held in self.held if held.session is None], which)
        seconds = (held.grip.until - self.model.now) // SECOND
        if seconds > 1:
            self.pass_time(seconds - 1)
            self.renew(which)
            self.pass_time(seconds - 1)

    @precondition(lambda self: any(held.session is None for held in self.held))
    @rule(which=INDEX)
    def close_receiver(self, which: int) -> None:
        """Close the receiver of one of the deliveries, which held all that were taken there."""
        name = chosen([held for held in self.held if held.session is None], which).place
        mine = [held for held in self.held if held.place == name and held.session is None]
        tokens = [held.grip.token for held in mine]

        def real() -> None:
            self.broker.post_on_queue(
                EntityPath(name), lambda queue, now: queue.release(tokens, now)
            )

        self.both(real, lambda: self.model.release(name, [held.grip for held in mine]))
        self.held = [held for held in self.held if held not in mine]

    # --- sessions

    @rule(
        name=st.sampled_from((*QUEUES, *SUBSCRIPTIONS)),
        session=st.none() | st.sampled_from(["x", "y"]),
    )
    def accept(self, name: str, session: str | None) -> None:
        places = self.model.places
        if not (name in places and places[name].requires_session):
            name = next((key for key, p in places.items() if p.requires_session), name)
        answers = self.both(
            self.on_queue(name, lambda queue, now: queue.sessions.accept(session, now)),
            lambda: self.model.accept(name, session),
        )
        if answers is not None:
            accepted, grip = answers
            assert (accepted is None) is (grip is None), (accepted, grip)
            if grip is not None:
                assert (accepted.session, accepted.until) == (grip.name, grip.until)
                grip.token = accepted.holder
                self.sessions.append(Held(name, grip))

    @precondition(lambda self: self.sessions)
    @rule(which=INDEX)
    def renew_session(self, which: int) -> None:
        held = chosen(self.sessions, which)
        answers = self.both(
            self.on_queue(held.place, lambda q, now: q.sessions.renew(held.grip.token, now)),
            lambda: self.model.renew_session(held.place, held.grip),
        )
        assert answers is None or answers[0] == held.grip.until

    @precondition(lambda self: self.sessions)
    @rule(which=INDEX, state=st.sampled_from([None, b"", b"1"]))
    def set_state(self, which: int, state: bytes | None) -> None:
        held, token = chosen(self.sessions, which), chosen(self.sessions, which).grip.token
        self.both(
            self.on_queue(held.place, lambda q, now: q.sessions.set_state(token, state, now)),
            lambda: self.model.set_state(held.place, held.grip, state),
        )

    @precondition(lambda self: self.sessions)
    @rule(which=INDEX)
    def get_state(self, which: int) -> None:
        held = chosen(self.sessions, which)
        answers = self.both(
            self.on_queue(held.place, lambda q, now: q.sessions.state(held.grip.token, now)),
            lambda: self.model.state(held.place, held.grip),
        )
        assert answers is None or answers[0] == answers[1]

    @precondition(lambda self: self.sessions)
    @rule(which=INDEX)
    def close_session(self, which: int) -> None:
        held = chosen(self.sessions, which)
        self.sessions.remove(held)

        def real() -> None:
            self.broker.post_on_queue(
                EntityPath(held.place), lambda q, now: release_session(q, held.grip.token, now)
            )

        self.both(real, lambda: self.model.close_session(held.place, held.grip))

    @precondition(lambda self: any(p.requires_session for p in self.model.places.values()))
    @rule(batch=BATCHES, limit=st.integers(1, 3), hows=ENDINGS, closes=mostly(True, False))
    def visit_a_session(self, batch: list[Message], limit: int, hows: Any, closes: bool) -> None:
        """Take some messages of a session, settle some, take the next; then close, or wait."""
        name = next(key for key, p in self.model.places.items() if p.requires_session)
        topic = self.model.places[name].topic
        self.send(topic, [attrs.evolve(each, session_id="x") for each in batch], None)
        before = len(self.sessions)
        self.accept(name, None)
        if len(self.sessions) == before:
            return
        self.accept(name, self.sessions[before].grip.name)  # nobody else gets it
        self.take_of_session(before, limit, True)
        for how in hows:
            if self.held and self.held[-1].session is self.sessions[before]:
                self.settle_last(how)
        self.take_of_session(before, limit, True)
        if closes:
            self.close_session(before)
        else:
            self.pass_time(self.lock_of(name))

    def lock_of(self, name: str) -> int:
        """The whole seconds after which a lock of that entity has ended."""
        return int(self.model.places[name].lock_duration / timedelta(seconds=1)) + 1

    # --- time

    @rule(seconds=st.sampled_from([1, 2, 4, 6, 12, 33, 70]))
    def wait(self, seconds: int) -> None:
        self.pass_time(seconds)

    @rule(seconds=st.sampled_from([200, 400, 4000]), sure=mostly(False, True))
    def wait_long(self, seconds: int, sure: bool) -> None:
        if sure:
            self.pass_time(seconds)

    @precondition(lambda self: self.model.has(SCHEDULED))
    @rule()
    def wait_for_a_scheduled_message(self) -> None:
        """Look in the last whole second before its date, and in the first one after it."""
        dates = [m.due for p in self.model.places.values() for m in p.of(SCHEDULED) if m.due]
        seconds = (min(dates) - self.model.now) // SECOND
        for each in (seconds, 1):
            self.pass_time(each)
            self.look()

    def pass_time(self, seconds: int) -> None:
        until = self.model.now + seconds * SECOND
        self.both(lambda: self.broker.wait(until), lambda: self.model.wait(until))

    # --- looking

    @rule()
    def look(self) -> None:
        """Everything is the same: entities, messages, their order, numbers, counts and sizes."""
        names = [info.path.key for info in done(self.broker.list_queues())]
        names += [info.path.key for info in done(self.broker.list_topics())]
        if TOPIC in names:
            page = done(self.broker.list_subscriptions(EntityPath(TOPIC)))
            names += [info.path.key for info in page]
        assert sorted(names) == sorted(self.model.places)
        for name in names:
            self.look_at(name)

    def look_at(self, name: str) -> None:
        place, path = self.model.places[name], EntityPath(name)
        info: Any
        if place.is_topic:
            done(self.broker.run_on(path, lambda space, now: space.find(path).sweep(now)))
            info = done(self.broker.inspect_topic(path))
            assert (info.size, info.scheduled) == (
                self.model.size(place),
                len(place.of(SCHEDULED)),
            )
            assert info.properties == place.properties
        else:
            info = done(self.broker.inspect(path))
            counts = [
                info.active,
                info.scheduled,
                info.deferred,
                info.dead_lettered,
                info.transfer_dead_lettered,
            ]
            assert counts == [len(place.of(*each)) for each in COUNTED], (name, place.mails, info)
            assert info.properties == as_queue(place.properties)
        assert info.version == place.version
        for sub, states in parts(path):
            found = self.all_of(sub)
            mails = place.of(*states)
            by_time = ACTIVE not in states
            self.compare(found, self.adopt(found, mails) if by_time else mails)

    def all_of(self, path: EntityPath) -> list[Delivery]:
        """Return the messages of an entity in a way that doesn't count as use of it."""
        states = [State.ACTIVE, State.SCHEDULED, State.DEFERRED]
        if path.is_dead_letter:
            dead = State.TRANSFER if path.is_transfer_dead_letter else State.DEAD
            states = [dead, DEFERRED_OF[dead]]
        space = self.broker.namespace
        rows: list[Row] = []
        while page := space.find(path).peek(states, rows[-1].number + 1 if rows else 0, 1000):
            rows += page  # one peek shows a bounded number of bytes
            found = [row.number for row in rows]
            assert found == sorted(set(found)), f"a number comes twice: {found}"
        return [
            to_delivery(TakenRow(row, row.deliveries), self.broker.unpack(row.content), 0)
            for row in rows
        ]

    def adopt(self, found: Sequence[Delivery], mails: list[Mail]) -> list[Mail]:
        """The dead letters in the real order, as far as time made them: that promises none."""
        names = [delivery.message.properties["name"] for delivery in found]
        if any(mail.by_time for mail in mails):
            places = sorted((mail.order, mail.own) for mail in mails)
            mails = sorted(
                mails,
                key=lambda m: (
                    names.index(m.message.properties["name"])
                    if m.message.properties["name"] in names
                    else 0
                ),
            )
            for mail, place in zip(mails, places, strict=True):
                mail.order, mail.own = place
        return mails

    def compare(self, found: Sequence[Delivery], mails: list[Mail]) -> None:
        told = [peeked(each) for each in found], [expected_peek(each) for each in mails]
        assert told[0] == told[1], told
        for delivery, mail in zip(found, mails, strict=True):
            self.note(mail, delivery.sequence_number)

    def note(self, mail: Mail, number: int) -> None:
        """The number is the next of its entity or sub-queue, and stays as long as the message."""
        assert number == mail.own, (number, mail)
        mail.number = number

    @rule(name=st.sampled_from((*QUEUES, *SUBSCRIPTIONS)), which=INDEX, limit=st.integers(1, 3))
    def peek(self, name: str, which: int, limit: int) -> None:
        if name not in self.model.places:
            return
        mails = self.model.places[name].of(ACTIVE, SCHEDULED, DEFERRED)
        known = [mail for mail in mails if mail.number is not None]
        if known and None not in {mail.number for mail in mails}:
            first = chosen(known, which)
            done(self.broker.inspect(EntityPath(name)))
            found = done(
                self.broker.peek(EntityPath(name), from_sequence=first.number or 0, limit=limit)
            )
            self.compare(found, mails[mails.index(first) :][:limit])
            self.model.peeked(name)


class EmbeddedMachine(Machine):
    """A machine on a file, with restarts and crashes."""

    folder: ClassVar[Any]  # a function that makes one
    broker: SteppedEmbedded

    def make(self) -> SteppedBroker:
        return SteppedEmbedded(type(self).folder())

    def pass_time(self, seconds: int) -> None:
        """Let time pass, and look: the store does what has become due when it is asked."""
        super().pass_time(seconds)
        self.look()

    @rule()
    def tidy(self) -> None:
        self.broker.tidy()

    @rule()
    def restart(self) -> None:
        """A clean end: the store has everything, the delivery counts too."""
        self.broker.restart()
        self.begin_again()

    @rule()
    def crash(self) -> None:
        self.broker.crash()
        self.begin_again()
        self.accept_lower_counts()

    @rule(
        name=st.sampled_from(QUEUES),
        batch=BATCHES,
        limit=st.integers(1, 3),
        is_last=mostly(True, False),
    )
    def crash_of_a_receiver(
        self, name: str, batch: list[Message], limit: int, is_last: bool
    ) -> None:
        """Crash right after a receive, often the only one that the queue allows."""
        if is_last and name in self.model.places:
            once = QueueProperties(max_delivery_count=1)
            self.change(name, with_fixed(once, self.model.places[name]), None)
        self.send(name, batch, None)
        self.acquire(name, ACTIVE, limit, True)
        self.crash()

    @rule(name=st.sampled_from((*QUEUES, TOPIC)), batch=BATCHES)
    def crash_in_a_send(self, name: str, batch: list[Message]) -> None:
        """Crash within a send: the messages that weren't committed are gone."""
        self.broker.crash_within(self.broker.send(EntityPath(name), self.stamped(batch, None)))
        self.begin_again()
        self.accept_lower_counts()

    @rule(which=INDEX, how=SETTLEMENTS)
    def crash_in_a_settlement(self, which: int, how: Any) -> None:
        held = [each for each in self.held if each.session is None]
        if held:
            token, name = chosen(held, which).grip.token, chosen(held, which).place
            self.broker.crash_within(
                self.broker.on_queue(
                    EntityPath(name), lambda queue, now: queue.settle(token, how, now)
                )
            )
            self.begin_again()
            self.accept_lower_counts()

    def begin_again(self) -> None:
        Machine.states += 1
        self.model.restart()
        self.held.clear()
        self.sessions.clear()

    def accept_lower_counts(self) -> None:
        """
        Counts of deliveries are written later than all else: after a crash some are missing, and
        some that were taken back are there.

        Those of a last delivery never are: a message that kills its receiver ends as a dead letter.
        """
        for name, place in self.model.places.items():
            for sub, states in parts(EntityPath(name)):
                for delivery in self.all_of(sub):
                    for mail in place.of(*states):
                        if is_same(mail, delivery):
                            assert delivery.delivery_count <= mail.highest
                            if mail.state != ACTIVE or not mail.is_last:
                                mail.count = delivery.delivery_count


def parts(path: EntityPath) -> Sequence[tuple[EntityPath, Sequence[str]]]:
    """Return the queue and its sub-queues, each with the states of its messages in the model."""
    return (
        (path, (ACTIVE, SCHEDULED, DEFERRED)),
        (path.dead_letter, (DEAD, DEAD_DEFERRED)),
        (path.transfer_dead_letter, (TRANSFER, TRANSFER_DEFERRED)),
    )


def is_same(mail: Mail, delivery: Delivery) -> bool:
    """True if they are one message: by its number, or by its name while no number is known."""
    if mail.number is not None:
        return mail.number == delivery.sequence_number
    return bool(mail.message.properties["name"] == delivery.message.properties["name"])


def with_fixed(properties: Any, old: Any) -> Any:
    """The properties, but for those that no update changes."""
    fixed = ("requires_session", "requires_duplicate_detection")
    same = {each: getattr(old, each) for each in fixed if hasattr(properties, each)}
    return attrs.evolve(properties, **same)


def kind_of(name: str) -> Any:
    if name == TOPIC:
        return TopicProperties
    return QueueProperties if name in QUEUES else SubscriptionProperties


def outcome(call: Callable[[], Any]) -> Any:
    """Return the result of the call, or the class of its error."""
    try:
        return call()
    except BrokerError as error:
        return type(error)


def chosen(items: Sequence[Any], which: int) -> Any:
    return items[which % len(items)]


def numbers(mails: list[Mail]) -> list[int]:
    return [mail.number or 0 for mail in mails]


def orders(mails: list[Mail]) -> list[int]:
    return [mail.order for mail in mails]


def sized(messages: list[Message]) -> list[tuple[Message, int]]:
    return [(message, len(encode_message(message))) for message in messages]


def release_session(queue: Any, token: str, now: Any) -> None:
    queue.sessions.release(token, now)


def shown(delivery: Delivery) -> tuple[Any, ...]:
    return (*peeked(delivery), delivery.locked_until)


def peeked(delivery: Delivery) -> tuple[Any, ...]:
    properties = delivery.message.properties
    return (
        properties["name"],
        delivery.delivery_count,
        properties.get(DEAD_LETTER_REASON),
        delivery.message.session_id,
        delivery.expires,
        (delivery.dead_letter_source or "").lower(),
        delivery.state.name.lower(),
    )


def expected(mail: Mail) -> tuple[Any, ...]:
    until = None
    if mail.grip is not None:
        until = to_date((mail.grip.session or mail.grip).until)
    return (*expected_peek(mail), until)


def expected_peek(mail: Mail) -> tuple[Any, ...]:
    return (
        mail.message.properties["name"],
        mail.count,
        mail.reason,
        mail.message.session_id,
        None if mail.expires is None else to_date(mail.expires),
        (mail.source or "").lower(),
        {DEAD: ACTIVE, TRANSFER: ACTIVE, DEAD_DEFERRED: DEFERRED, TRANSFER_DEFERRED: DEFERRED}.get(
            mail.state, mail.state
        ),
    )
