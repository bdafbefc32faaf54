"""
A naive model of a namespace: plain lists, and each question is answered by a scan of all of them.

Written from Service Bus's documentation and the docstrings of `gateway/ports.py`, so that it shares
no mistake with `gateway/domain/`. Each method is one operation at the moment `now`; the events that
time brings happen in `wait`, one after the other.
"""

import copy
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import attrs

from gateway.domain.entity import EntityStatus
from gateway.domain.errors import (
    BrokerError,
    EntityDisabled,
    EntityExists,
    EntityNotFound,
    InvalidRequest,
    LockLost,
    MessageNotFound,
    MessageTooLarge,
    PreconditionFailed,
    QuotaExceeded,
    SessionLockLost,
    SessionNotAvailable,
    SessionRequired,
)
from gateway.domain.message import Abandon, Complete, DeadLetter, Defer, Message, Settlement
from gateway.domain.topics.filters import CorrelationFilter, Filter, SqlFilter, TrueFilter

ACTIVE, SCHEDULED, DEFERRED = "active", "scheduled", "deferred"
DEAD, TRANSFER = "dead", "transfer"
DEAD_DEFERRED, TRANSFER_DEFERRED = "deferred dead letter", "deferred transfer"
DEFERRED_OF = {ACTIVE: DEFERRED, DEAD: DEAD_DEFERRED, TRANSFER: TRANSFER_DEFERRED}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MAX_SIZE = 1024 * 1024
MAX_HOPS = 4


class TooManyHops(BrokerError):
    """Forwarded from queue to queue once too often."""


def micros(duration: timedelta) -> int:
    return duration // timedelta(microseconds=1)


@attrs.define(eq=False)
class Grip:
    """A lock of a message or of a session, and until when. `session`: of which it is a part."""

    until: int
    session: "Grip | None" = None
    name: str = ""
    token: str = ""  # the real one's

    def holds(self, now: int) -> bool:
        return now < (self.session or self).until


@attrs.define(eq=False)
class Mail:
    """
    A message in a place. `own` is its sequence number there, and `number` the one that the real
    namespace has told.
    """

    message: Message
    size: int
    order: int
    state: str
    due: int | None = None
    expires: int | None = None
    count: int = 0
    highest: int = 0  # that the count was: some deliveries are taken back
    is_last: bool = False  # as many deliveries as the place allowed at that moment
    reason: str | None = None
    source: str | None = None
    grip: Grip | None = None
    number: int | None = None
    own: int = 0
    by_time: bool = False  # a dead letter that time made: the exact moment doesn't matter


@attrs.define(eq=False)
class Place:
    """A queue, topic or subscription with everything in it."""

    name: str
    properties: Any
    used: int
    version: int
    mails: list[Mail] = attrs.field(factory=list)
    seen: dict[str, int] = attrs.field(factory=dict)  # the date until which an id is a duplicate
    states: dict[str, bytes] = attrs.field(factory=dict)
    held: dict[str, Grip] = attrs.field(factory=dict)
    rules: dict[str, Filter] | None = None  # of a subscription
    drawn: dict[str, int] = attrs.field(factory=dict)  # numbers, in each sub-queue

    def draw(self, state: str) -> int:
        """The next number of the sub-queue whose messages are received in that state."""
        self.drawn[state] = self.drawn.get(state, 0) + 1
        return self.drawn[state]

    def __getattr__(self, name: str) -> Any:
        """A property; one that this kind of entity lacks is off."""
        return getattr(self.properties, name, None)

    @property
    def is_topic(self) -> bool:
        return hasattr(self.properties, "support_ordering")

    @property
    def key(self) -> str:
        return self.name.lower()

    @property
    def topic(self) -> str:
        return self.key.partition("/subscriptions/")[0]

    def of(self, *states: str) -> list[Mail]:
        return sorted((m for m in self.mails if m.state in states), key=lambda m: m.order)


class Naive:
    """The namespace. `now` is in microseconds."""

    def __init__(self, now: int) -> None:
        self.now = now
        self.places: dict[str, Place] = {}
        self.last = 0
        self.waits = False

    def has(self, state: str) -> bool:
        return any(place.of(state) for place in self.places.values())

    # --- entities

    def find(self, name: str) -> Place:
        if name.lower() not in self.places:
            raise EntityNotFound(name)
        return self.places[name.lower()]

    def create(self, name: str, properties: Any, rule: Filter | None = None) -> None:
        topic, _, subscription = name.partition("/subscriptions/")
        if subscription and not self.find(topic).is_topic:
            raise EntityNotFound(topic)
        if name.lower() in self.places:
            raise EntityExists(name)
        place = Place(name, properties, used=self.now, version=self.now)
        self._check_circle(place)
        if subscription:
            place.rules = {"$default": rule or TrueFilter()}
        self.places[place.key] = place
        self._use(place)

    def update(self, name: str, properties: Any, version: int | None) -> None:
        old = self.find(name)
        if type(old.properties) is not type(properties):
            raise EntityNotFound(name)
        if version is not None and version != old.version:
            raise PreconditionFailed(name)
        for fixed in ("requires_session", "requires_duplicate_detection"):
            if getattr(properties, fixed, None) != getattr(old, fixed):
                raise InvalidRequest(fixed)
        self._check_circle(Place(name, properties, used=0, version=0))
        old.properties, old.version = properties, old.version + 1
        self._use(old)
        for mail in old.of(ACTIVE):
            if mail.grip is None and old.forward_to:
                self._settle_down(old, mail)

    def put_rule(self, name: str, label: str, new: Filter) -> None:
        place = self.find(name)
        if place.rules is not None:
            place.rules[label] = new
        self._use(place)

    def delete(self, name: str) -> None:
        self._use(self.find(name))
        self._remove(name)

    def _remove(self, name: str) -> None:
        """Remove the entity with all that belongs to it: of an idle one, that is no use."""
        for key in list(self.places):
            if key == name.lower() or self.places[key].topic == name.lower():
                del self.places[key]

    def _use(self, place: Place) -> None:
        """Note a use of the entity and of its topic: neither is idle."""
        place.used = self.places[place.topic].used = self.now

    def _check_circle(self, place: Place) -> None:
        def next_of(key: str) -> list[str]:
            other = place if key == place.key else self.places.get(key)
            if other is None:
                return []
            ways = [other.forward_to, other.forward_dead_lettered_messages_to]
            if other.is_topic:
                ways += [p.name for p in self.places.values() if p.rules and p.topic == key]
            return [way.lower() for way in ways if way]

        home = (place.key, place.topic)
        ahead, seen = [key for key in next_of(place.key) if key not in home], set[str]()
        while ahead:
            key = ahead.pop()
            if key in (place.key, place.topic):
                raise InvalidRequest("circle")
            if key not in seen:
                seen.add(key)
                ahead += next_of(key)

    # --- coming in

    def send(self, name: str, messages: list[tuple[Message, int]]) -> list[Mail]:
        """Send messages with their encoded sizes; return the fate of each."""
        place = self.find(name)
        self._check_open(place, messages)
        self._check_batch(place, messages)
        self._use(place)
        return [self._take_in(place, message, size, hops=0) for message, size in messages]

    def _check_open(self, place: Place, messages: list[tuple[Message, int]]) -> None:
        if place.status in (EntityStatus.DISABLED, EntityStatus.SEND_DISABLED):
            raise EntityDisabled(place.name)
        for message, size in messages:
            if size > (place.max_message_size or MAX_SIZE):
                raise MessageTooLarge(place.name)
            if place.requires_session and message.session_id is None:
                raise SessionRequired(place.name)

    def _check_batch(self, place: Place, messages: list[tuple[Message, int]]) -> None:
        """Duplicates need no room; a topic needs it for each copy."""
        ids, added, copies = dict(place.seen), 0, 0
        for message, size in messages:
            if place.requires_duplicate_detection and message.message_id is not None:
                if ids.get(message.message_id, 0) > self.now:
                    continue
                ids[message.message_id] = self.now + 1
            added += size
            if place.is_topic and self._delay(message) == 0:
                copies += size * len(self._takers(place, message))
        self._check_quota(place, added)
        self._check_quota(place, copies)

    def _check_quota(self, place: Place, added: int) -> None:
        owner = self.places[place.topic]
        if added and self.size(owner) + added > owner.max_size_in_megabytes * 1024 * 1024:
            raise QuotaExceeded(owner.name)

    def size(self, owner: Place) -> int:
        """The bytes of an entity; of a topic, with its subscriptions."""
        family = (p for p in self.places.values() if owner in (p, self.places.get(p.topic)))
        return sum(mail.size for p in family for mail in p.mails)

    def _take_in(self, place: Place, message: Message, size: int, hops: int) -> Mail:
        mail = Mail(message, size, self._next(), ACTIVE, own=place.draw(ACTIVE))
        start = self.now + self._delay(message)
        if start > self.now:
            mail.state, mail.due = SCHEDULED, start
        lives = [life for life in (message.time_to_live, place.default_time_to_live) if life]
        if lives:
            mail.expires = start + micros(min(lives))
        if self._is_new(place, mail):
            self._put(place, mail, hops)
        return mail

    def _delay(self, message: Message) -> int:
        return max(0, to_now(message.scheduled) - self.now) if message.scheduled else 0

    def _is_new(self, place: Place, mail: Mail) -> bool:
        text = mail.message.message_id
        if not place.requires_duplicate_detection or text is None:
            return True
        if place.seen.get(text, 0) > self.now:
            return False
        place.seen[text] = self.now + micros(place.duplicate_detection_window)
        return True

    def _put(self, place: Place, mail: Mail, hops: int) -> None:
        place.mails.append(mail)
        if mail.state == ACTIVE:
            self._settle_down(place, mail, hops)

    def _settle_down(self, place: Place, mail: Mail, hops: int = 0) -> None:
        """Settle an active message that no receiver holds: it stays, or goes to its destination."""
        if mail.count >= (place.max_delivery_count or 1) and mail.count:
            self._dead_letter(place, mail, "MaxDeliveryCountExceeded")
        elif mail.expires is not None and mail.expires <= self.now:
            self._expire(place, mail)
        elif place.is_topic:
            self._publish(place, mail, hops)
        elif place.forward_to:
            self._forward(place, mail, place.forward_to, hops)

    def _publish(self, topic: Place, mail: Mail, hops: int) -> None:
        topic.mails.remove(mail)
        for place in self._takers(topic, mail.message):
            self._arrive(place, mail, hops + 1)

    def _takers(self, topic: Place, message: Message) -> list[Place]:
        return [
            place
            for place in self.places.values()
            if place.rules is not None
            and place.topic == topic.key
            and any(takes(rule, message) for rule in place.rules.values())
        ]

    def _forward(self, place: Place, mail: Mail, target: str, hops: int) -> None:
        try:
            if hops >= MAX_HOPS or target.lower() in (place.key, place.topic):
                raise TooManyHops
            there = self.find(target)
            if there.status in (EntityStatus.DISABLED, EntityStatus.SEND_DISABLED):
                raise EntityDisabled(target)
            if mail.size > (there.max_message_size or MAX_SIZE):
                raise MessageTooLarge(target)
            self._check_quota(there, mail.size)
        except BrokerError as error:
            name = type(error).__name__
            mail.reason = "MaxTransferHopCountExceeded" if name == "TooManyHops" else name
            mail.state, mail.grip, mail.expires = TRANSFER, None, None
            mail.order, mail.number, mail.own = self._next(), None, place.draw(TRANSFER)
            return
        place.mails.remove(mail)
        self._arrive(there, mail, hops + 1)

    def _arrive(self, place: Place, mail: Mail, hops: int) -> None:
        new = copy.copy(mail)
        new.order, new.number, new.count, new.grip, new.due = self._next(), None, 0, None, None
        new.highest = 0
        new.state, new.is_last = ACTIVE, False
        life = place.default_time_to_live
        if life is not None:
            new.expires = min(self.now + micros(life), new.expires or self.now + micros(life))
        if place.rules is None:
            self._use(place)
        if not self._is_new(place, new):
            return
        if place.requires_session and mail.message.session_id is None:
            place.mails.append(new)
            self._dead_letter(place, new, "Session ID is null.", hops)
            return
        new.own = place.draw(ACTIVE)
        self._put(place, new, hops)

    def _next(self) -> int:
        self.last += 1
        return self.last

    # --- going out

    def _check_receivable(self, place: Place, state: str = ACTIVE) -> None:
        if place.status in (EntityStatus.DISABLED, EntityStatus.RECEIVE_DISABLED):
            raise EntityDisabled(place.name)
        if state == ACTIVE and (place.is_topic or place.forward_to):
            raise InvalidRequest(place.name)

    def take(
        self, name: str, state: str, limit: int, *, keep: bool, session: Grip | None = None
    ) -> list[Mail]:
        """Up to `limit` messages, locked (`keep`) or deleted."""
        place = self.find(name)
        self._check_receivable(place, state)
        if state == ACTIVE and bool(place.requires_session) is not (session is not None):
            raise SessionRequired(name)
        self._check_session(session)
        self._use(place)
        free = [mail for mail in place.of(state) if mail.grip is None]
        if session is not None:
            free = [mail for mail in free if mail.message.session_id == session.name]
        fit: list[Mail] = []
        while free and len(fit) < limit:
            mail = free.pop(0)
            if mail.state == ACTIVE and mail.count >= place.max_delivery_count:
                self._dead_letter(
                    place, mail, "MaxDeliveryCountExceeded"
                )  # its receiver ended with this process
            else:
                fit.append(mail)
        return self._deliver(place, fit, keep, session)

    def take_deferred(
        self, name: str, state: str, orders: list[int], *, keep: bool, session: Grip | None = None
    ) -> list[Mail]:
        place = self.find(name)
        self._check_receivable(place, state)
        if state == ACTIVE and bool(place.requires_session) is not (session is not None):
            raise SessionRequired(name)
        self._check_session(session)
        self._use(place)
        found = []
        for order in orders:
            mails = [m for m in place.of(DEFERRED_OF[state]) if m.order == order and m.grip is None]
            if session is not None:
                mails = [m for m in mails if m.message.session_id == session.name]
            found += mails
        expired = [m for m in found if m.expires is not None and m.expires <= self.now]
        for mail in expired:
            self._expire(place, mail)
        if expired or len(found) < len(orders):
            raise MessageNotFound(name)
        return self._deliver(place, found, keep, session)

    def _deliver(
        self, place: Place, mails: list[Mail], keep: bool, session: Grip | None
    ) -> list[Mail]:
        for mail in mails:
            mail.count += 1
            mail.highest = max(mail.highest, mail.count)
            mail.is_last = mail.state == ACTIVE and mail.count >= place.max_delivery_count
            if keep:
                mail.grip = Grip(self.now + micros(place.lock_duration), session)
            else:
                place.mails.remove(mail)
        return mails

    def settle(self, name: str, grip: Grip, how: Settlement, session: Grip | None = None) -> None:
        place = self.find(name)
        self._check_session(session)
        mail = self._locked(place, grip)
        if mail.state not in (ACTIVE, DEFERRED) and isinstance(how, DeadLetter):
            raise InvalidRequest("a dead letter stays one")
        self._use(place)
        match how:
            case Complete():
                place.mails.remove(mail)
            case Abandon(delivered=delivered):
                mail.count -= not delivered
                self._give_back(place, mail)
            case Defer():
                mail.grip, mail.state = None, DEFERRED_OF.get(mail.state, mail.state)
            case DeadLetter(reason=reason):
                mail.count -= 1
                self._dead_letter(place, mail, reason)

    def renew(self, name: str, grip: Grip) -> None:
        place = self.find(name)
        self._locked(place, grip)
        grip.until = self.now + micros(place.lock_duration)

    def release(self, name: str, grips: list[Grip]) -> None:
        """Close a receiver: the messages that it still holds come back."""
        if name.lower() in self.places:
            place = self.find(name)
            for mail in [mail for mail in place.of(*ALL) if mail.grip in grips and mail.grip]:
                self._give_back(place, mail)

    def _locked(self, place: Place, grip: Grip) -> Mail:
        for mail in place.mails:
            if mail.grip is grip and grip.holds(self.now):
                return mail
        raise LockLost(place.name)

    def _give_back(self, place: Place, mail: Mail) -> None:
        mail.grip = None
        if mail.state == ACTIVE:
            self._settle_down(place, mail)
        elif mail.state == DEFERRED and mail.expires is not None and mail.expires <= self.now:
            self._expire(place, mail)

    def _expire(self, place: Place, mail: Mail) -> None:
        if place.dead_lettering_on_expiration:
            self._dead_letter(place, mail, "TTLExpiredException")
        else:
            place.mails.remove(mail)

    def _dead_letter(self, place: Place, mail: Mail, reason: str, hops: int = 0) -> None:
        mail.reason, mail.state, mail.grip, mail.expires = reason, DEAD, None, None
        mail.order, mail.number, mail.by_time = self._next(), None, self.waits
        if place.forward_dead_lettered_messages_to:
            mail.source = place.name
            self._forward(place, mail, place.forward_dead_lettered_messages_to, hops)
        else:
            mail.own = place.draw(DEAD)

    def cancel(self, name: str, orders: list[int]) -> None:
        place = self.find(name)
        found = [mail for mail in place.of(SCHEDULED) if mail.order in orders]
        if len(found) < len(orders):
            raise MessageNotFound(name)
        self._use(place)
        for mail in found:
            place.mails.remove(mail)

    def peeked(self, name: str) -> None:
        self._use(self.find(name))

    # --- sessions

    def accept(self, name: str, session: str | None) -> Grip | None:
        place = self.find(name)
        if not place.requires_session:
            raise InvalidRequest(name)
        self._check_receivable(place)
        self._use(place)
        if session is None:
            waiting = [m.message.session_id for m in place.of(ACTIVE) if m.grip is None]
            session = next((each for each in waiting if each not in place.held), None)
            if session is None:
                return None
        elif session in place.held:
            raise SessionNotAvailable(session)
        grip = Grip(self.now + micros(place.lock_duration), name=session)
        place.held[session] = grip
        return grip

    def _check_session(self, session: Grip | None) -> None:
        held = [grip for place in self.places.values() for grip in place.held.values()]
        if session is not None and session not in held:
            raise SessionLockLost

    def renew_session(self, name: str, grip: Grip) -> None:
        place = self.find(name)
        self._check_session(grip)
        grip.until = self.now + micros(place.lock_duration)

    def close_session(self, name: str, grip: Grip) -> None:
        if name.lower() in self.places:
            place = self.find(name)
            if place.held.get(grip.name) is grip:
                for mail in [mail for mail in place.of(*ALL) if mail.grip]:
                    mail.count -= mail.grip is not None and mail.grip.session is grip
            self._let_go(place, grip)

    def _let_go(self, place: Place, session: Grip) -> None:
        """The session is free, and its messages are too."""
        if place.held.get(session.name) is session:
            del place.held[session.name]
            for mail in place.of(*ALL):
                if mail.grip is not None and mail.grip.session is session:
                    self._give_back(place, mail)

    def state(self, name: str, grip: Grip) -> bytes | None:
        place = self.find(name)
        self._check_session(grip)
        return place.states.get(grip.name)

    def set_state(self, name: str, grip: Grip, state: bytes | None) -> None:
        place = self.find(name)
        self._check_session(grip)
        place.states.pop(grip.name, None)
        if state is not None:
            place.states[grip.name] = state

    # --- time, and the end of a process

    def wait(self, until: int) -> None:
        """Let time pass: the events that time brings happen in order."""
        self.waits = True
        while (event := min(self._events(), key=lambda event: event[:2], default=None)) is not None:
            if event[0] > until:
                break
            self.now = max(self.now, event[0])
            event[2]()
        self.now, self.waits = until, False

    def _events(self) -> Iterator[tuple[int, int, Callable[[], None]]]:
        for place in self.places.values():
            for grip in place.held.values():
                yield grip.until, 0, lambda p=place, g=grip: self._let_go(p, g)
            for mail in place.mails:
                yield from self._events_of(place, mail)
            busy = place.of(SCHEDULED) or place.forward_to
            if place.auto_delete_on_idle is not None and not busy:
                end = place.used + micros(place.auto_delete_on_idle)
                yield end, 0, lambda p=place: self._remove(p.name)

    def _events_of(self, place: Place, mail: Mail) -> Iterable[Any]:
        if mail.grip is not None:
            if mail.grip.session is None:
                yield mail.grip.until, mail.order, lambda: self._give_back(place, mail)
        elif mail.state == SCHEDULED and mail.due is not None:
            yield mail.due, mail.order, lambda: self._enqueue(place, mail)
        elif mail.state == ACTIVE and mail.expires is not None:
            yield mail.expires, mail.order, lambda: self._settle_down(place, mail)

    def _enqueue(self, place: Place, mail: Mail) -> None:
        self._use(place)
        mail.state, mail.due = ACTIVE, None
        mail.order, mail.number, mail.own = self._next(), None, place.draw(ACTIVE)
        self._settle_down(place, mail)

    def restart(self) -> None:
        """Restart: no lock is left, and the idle times begin again."""
        for place in self.places.values():
            self._use(place)
            place.held.clear()
            for mail in place.of(*ALL):
                mail.grip = None
        self.waits = True
        for place in self.places.values():
            for mail in place.of(ACTIVE):
                if place.forward_to or (mail.expires is not None and mail.expires <= self.now):
                    self._settle_down(place, mail)
        self.waits = False


ALL = (ACTIVE, SCHEDULED, DEFERRED, DEAD, TRANSFER, DEAD_DEFERRED, TRANSFER_DEFERRED)


def to_now(date: Any) -> int:
    return micros(date - EPOCH)


def takes(rule: Filter, message: Message) -> bool:
    """True if the rule takes the message; the filters of the machine ask for the subject only."""
    match rule:
        case CorrelationFilter(label=label):
            return label == message.subject
        case SqlFilter(expression=expression):
            return expression == f"sys.Label = '{message.subject}'"
    return isinstance(rule, TrueFilter)
