"""Events of the gateway, for observers: telemetry, tests, the demo."""

from collections.abc import Sequence
from typing import ClassVar, Literal

import attrs

from gateway.domain.entity import EntityPath
from gateway.domain.message import AcceptedBy

Level = Literal["debug", "info", "warning", "error"]


@attrs.frozen(kw_only=True)
class Event:
    """
    The base of all events. The class names the event, and says how a log shows it; the fields have
    subject and reason.
    """

    # "debug" for events of single sends: there is one per message.
    level: ClassVar[Level] = "info"
    # The fields by which two events are the same: for a while, repeated ones are counted instead of
    # shown, and the line has the last one's other fields. Empty: each event is shown.
    same: ClassVar[Sequence[str]] = ()
    # The field that names an entity, and those in which the events of many entities agree, which
    # are folded into one line. Empty: they aren't.
    crowd: ClassVar[Sequence[str]] = ()


@attrs.frozen(kw_only=True)
class Doubtful(Event):
    """A setting of the configuration or the system is allowed, but seldom right."""

    level = "warning"
    same = ("text",)

    text: str


@attrs.frozen(kw_only=True)
class Listening(Event):
    """An endpoint accepts connections."""

    protocol: str
    address: str  # the host:port that is bound


@attrs.frozen(kw_only=True)
class PageServed(Event):
    """A browser finds the operators' page at this URL."""

    page: str


@attrs.frozen(kw_only=True)
class Started(Event):
    """All parts are running."""

    configuration: str  # its source


@attrs.frozen(kw_only=True)
class Reloaded(Event):
    """The configuration was read again. Changes in `needs_restart` take effect at a restart."""

    configuration: str
    log_level: str  # in effect now
    access: str  # the names of the policies in effect now
    needs_restart: str
    envelope_keys: str = ""  # the ids in effect now; empty: none are configured


@attrs.frozen(kw_only=True)
class Draining(Event):
    """No connection is accepted any more; requests in progress have `seconds` to end."""

    reason: str
    seconds: float


@attrs.frozen(kw_only=True)
class Stopped(Event):
    """The process ends as it was asked to: all its parts have ended, and its files are closed."""


@attrs.frozen(kw_only=True)
class EntityStateChanged(Event):
    """An entity changed its state, by the failover table."""

    level = "warning"
    crowd = ("entity", "before", "after", "reason", "cause")

    entity: EntityPath
    before: str
    after: str
    reason: str
    cause: str = ""  # the failover table's event: failed, probed, forced-over ...


@attrs.frozen(kw_only=True)
class Diverted(Event):
    """A send was accepted by the backlog or the spool instead of the primary."""

    level = "debug"

    entity: EntityPath
    accepted_by: AcceptedBy
    queue: EntityPath
    messages: int
    in_doubt: bool = False  # an earlier attempt has an unknown outcome: perhaps a duplicate


@attrs.frozen(kw_only=True)
class SendFailed(Event):
    """A send failed, and the client got an error."""

    same = ("entity", "outcome", "reason")
    crowd = ("entity", "outcome", "reason")

    entity: EntityPath
    outcome: str
    reason: str


@attrs.frozen(kw_only=True)
class SentTwice(Event):
    """
    The primary accepted a send of which there may be another copy: of an earlier attempt without an
    answer, or of a hedge (`hedge_after`), which went to the backlog.

    With `certain` the backlog accepted the hedge, and the messages arrive twice. Else the outcome
    of the other copy is unknown.
    """

    level = "debug"

    entity: EntityPath
    messages: int
    certain: bool


@attrs.frozen(kw_only=True)
class BusyPause(Event):
    """The primary asked for a pause; all sends to the entity wait for `seconds`."""

    same = ("entity",)
    crowd = ("entity",)

    entity: EntityPath
    seconds: float


@attrs.frozen(kw_only=True)
class BacklogQueueFailed(Event):
    """A backlog queue failed and cools down for `seconds`."""

    level = "warning"
    same = ("queue", "reason")
    crowd = ("queue", "reason")

    queue: EntityPath
    seconds: float
    reason: str


@attrs.frozen(kw_only=True)
class EntitiesMade(Event):
    """Missing queues or topics of a namespace were created."""

    namespace: str
    entities: str  # their names


@attrs.frozen(kw_only=True)
class BacklogReady(Event):
    """The backlog is ready: the number of its usable queues, and the reasons for the others."""

    wanted: int
    usable: int
    reason: str


@attrs.frozen(kw_only=True)
class Syphoned(Event):
    """Messages of one entity arrived at the primary and left the backlog."""

    level = "debug"

    entity: EntityPath
    queue: EntityPath
    messages: int


@attrs.frozen(kw_only=True)
class SyphonBackedOff(Event):
    """
    The syphon backs off from one entity for `seconds`. The primary may have `in_doubt` messages of
    the send that failed, which are sent again.
    """

    level = "warning"
    same = ("entity", "reason")
    crowd = ("entity", "reason")

    entity: EntityPath
    seconds: float
    reason: str
    in_doubt: int = 0


@attrs.frozen(kw_only=True)
class DeadLettered(Event):
    """A backlog message was moved to the dead-letter sub-queue of its backlog queue."""

    level = "warning"

    queue: EntityPath
    message_id: str
    reason: str
    description: str


@attrs.frozen(kw_only=True)
class LeftUntouched(Event):
    """The syphon leaves these messages untouched: an operator must act (a red state)."""

    level = "error"

    queue: EntityPath
    messages: int
    reason: str


@attrs.frozen(kw_only=True)
class PrimaryReplaced(Event):
    """
    Another namespace answers at the primary's address (a red state). `was` and `now` are
    fingerprints.
    """

    level = "error"

    was: str
    now: str
    identity: str  # that the namespace reports


@attrs.frozen(kw_only=True)
class SyphonFailed(Event):
    """A backlog queue couldn't be read; the syphon tries again."""

    level = "warning"
    same = ("queue", "reason")
    crowd = ("queue", "reason")

    queue: EntityPath
    reason: str


@attrs.frozen(kw_only=True)
class SyphonStalled(Event):
    """Messages wait on the backlog and nothing moved for `seconds` (a red state)."""

    level = "error"

    pending: int
    seconds: float


@attrs.frozen(kw_only=True)
class HeartbeatsNotLeft(Event):
    """
    The secondary refuses the records of this process, so that other processes don't know whether it
    runs, and don't follow its orders. It works all the same.
    """

    level = "warning"

    queue: EntityPath
    reason: str


@attrs.frozen(kw_only=True)
class RecordRefused(Event):
    """
    A record on the secondary isn't sealed with a key of the pair, so that this process ignores it
    and all others like it. Another pair has the same label, a process has other envelope keys, or
    somebody forges records.
    """

    level = "warning"

    queue: EntityPath
    reason: str


@attrs.frozen(kw_only=True)
class BacklogOrphaned(Event):
    """
    Messages wait, the primary is healthy, and no message has moved for `seconds`: no syphon runs,
    or none that works (a red state).
    """

    level = "error"

    pending: int
    seconds: float


@attrs.frozen(kw_only=True)
class LoopPaused(Event):
    """The gateway itself was paused (suspended, stopped, stalled): earlier failures don't count."""

    level = "warning"

    seconds: float


@attrs.frozen(kw_only=True)
class StateNotSaved(Event):
    """The state file couldn't be written: a restart would forget which entities failed over."""

    level = "error"
    same = ("reason",)

    reason: str


@attrs.frozen(kw_only=True)
class StateSaved(Event):
    """The states of entities are in the file again, after `StateNotSaved`."""

    file: str


@attrs.frozen(kw_only=True)
class MovedToPoison(Event):
    """A message was dequeued too often, and was moved to the poison queue."""

    level = "warning"

    queue: EntityPath
    to: EntityPath
    sequence_number: int  # of the message in `queue`
    deliveries: int


@attrs.frozen(kw_only=True)
class LogLinesDropped(Event):
    """Log lines before this one were dropped: the log wasn't read, or its disk was full."""

    level = "warning"

    lines: int


@attrs.frozen(kw_only=True)
class ConnectionLost(Event):
    """A client's connection ended with an error of the transport or the protocol."""

    level = "debug"

    peer: str  # host:port; empty: not known
    reason: str


@attrs.frozen(kw_only=True)
class ConnectionCrashed(Event):
    """A bug ended one connection; the others continue."""

    level = "error"
    same = ("traceback",)

    peer: str
    traceback: str


@attrs.frozen(kw_only=True)
class WorkDetected(Event):
    """A queue has messages, or more than before, and gets that many tasks."""

    level = "debug"

    queue: EntityPath
    depth: int | None
    tasks: int


@attrs.frozen(kw_only=True)
class TasksEnded(Event):
    """Tasks of an idle queue have ended; `tasks` are left."""

    level = "debug"

    queue: EntityPath
    tasks: int


@attrs.frozen(kw_only=True)
class ItemFailed(Event):
    """A handler failed on a message, which is redelivered or is poison."""

    level = "warning"
    same = ("queue", "reason")

    queue: EntityPath
    message_id: str
    attempts: int
    reason: str


@attrs.frozen(kw_only=True)
class Poisoned(Event):
    """A listener moved a poison message out of its queue."""

    level = "warning"

    queue: EntityPath
    message_id: str
    attempts: int
    reason: str


@attrs.frozen(kw_only=True)
class SettledTooLate(Event):
    """A message was processed, but its lock expired before it was settled: it is redelivered."""

    level = "warning"
    same = ("queue",)

    queue: EntityPath
    message_id: str


@attrs.frozen(kw_only=True)
class LockTooShort(Event):
    """Too many settlements were late: messages of the queue should be locked for `seconds`."""

    level = "warning"

    queue: EntityPath
    seconds: float
    late_share: float


@attrs.frozen(kw_only=True)
class Billed(Event):
    """The billed operations of a listener's queue since the start. None: not known yet."""

    queue: EntityPath
    operations: int
    messages: int
    per_message: float | None
    per_idle_day: float | None


@attrs.frozen(kw_only=True)
class ListenerPaused(Event):
    """A listener receives nothing for `seconds`, because its endpoint is down."""

    level = "warning"
    same = ("reason",)

    seconds: float
    reason: str


@attrs.frozen(kw_only=True)
class ListenerFailed(Event):
    """A queue couldn't be read, or a message couldn't be settled; the listener tries again."""

    level = "warning"
    same = ("queue", "reason")
    crowd = ("queue", "reason")

    queue: EntityPath
    reason: str
