"""Things that happened, for whoever watches: telemetry, tests, the demo."""

import attrs

from gateway.domain.entity import EntityPath
from gateway.domain.message import Leg


@attrs.frozen(kw_only=True)
class Event:
    """Something happened. The class name is what; the fields are to whom and why."""


@attrs.frozen(kw_only=True)
class Doubtful(Event):
    """Something in the configuration or the surroundings is allowed and seldom wise."""

    text: str


@attrs.frozen(kw_only=True)
class Listening(Event):
    """An endpoint takes connections."""

    protocol: str
    address: str  # host:port as it was bound


@attrs.frozen(kw_only=True)
class Started(Event):
    """All parts run. With the seed and the same load, choices by chance can be repeated."""

    configuration: str  # where it came from
    seed: int


@attrs.frozen(kw_only=True)
class Reloaded(Event):
    """The configuration was read again; what changed in `needs_restart` has no effect yet."""

    configuration: str
    log_level: str  # which has effect
    access: str  # the names of the policies that have effect
    needs_restart: str


@attrs.frozen(kw_only=True)
class Draining(Event):
    """No connection is taken any more; what is under way has that long to end."""

    reason: str
    seconds: float


@attrs.frozen(kw_only=True)
class StandingChanged(Event):
    """An entity moved in the failover table."""

    entity: EntityPath
    before: str
    after: str
    reason: str


@attrs.frozen(kw_only=True)
class Diverted(Event):
    """A send was accepted by another leg than the primary."""

    entity: EntityPath
    leg: Leg
    queue: EntityPath
    messages: int


@attrs.frozen(kw_only=True)
class SendFailed(Event):
    """A send ended with an error for the client."""

    entity: EntityPath
    outcome: str
    reason: str


@attrs.frozen(kw_only=True)
class BusyPause(Event):
    """The primary asked for a pause; all sends to the entity wait."""

    entity: EntityPath
    seconds: float


@attrs.frozen(kw_only=True)
class BacklogQueueFailed(Event):
    """A backlog queue leaves the rotation for a while."""

    queue: EntityPath
    seconds: float
    reason: str


@attrs.frozen(kw_only=True)
class BacklogReady(Event):
    """How many of the wanted backlog queues can be used."""

    wanted: int
    usable: int
    reason: str


@attrs.frozen(kw_only=True)
class Syphoned(Event):
    """Messages of one entity arrived at the primary and left the backlog."""

    entity: EntityPath
    queue: EntityPath
    messages: int


@attrs.frozen(kw_only=True)
class SyphonHeld(Event):
    """The syphon lets one entity's messages rest for a while."""

    entity: EntityPath
    seconds: float
    reason: str


@attrs.frozen(kw_only=True)
class Parked(Event):
    """A backlog message ended in the dead-letter sub-queue of its backlog queue."""

    queue: EntityPath
    message_id: str
    reason: str
    description: str


@attrs.frozen(kw_only=True)
class LeftUntouched(Event):
    """The syphon won't touch these messages: somebody must look (a red state)."""

    queue: EntityPath
    messages: int
    reason: str


@attrs.frozen(kw_only=True)
class SyphonFailed(Event):
    """A backlog queue couldn't be read; the syphon tries again."""

    queue: EntityPath
    reason: str


@attrs.frozen(kw_only=True)
class SyphonStalled(Event):
    """Messages wait on the backlog and nothing moved for `seconds` (a red state)."""

    pending: int
    seconds: float


@attrs.frozen(kw_only=True)
class BacklogOrphaned(Event):
    """The primary is back for long, and the backlog stays: nobody runs a syphon."""

    pending: int
    seconds: float


@attrs.frozen(kw_only=True)
class LoopPaused(Event):
    """The gateway itself stood still (suspended, stopped, stalled): what it judged is void."""

    seconds: float


@attrs.frozen(kw_only=True)
class StateNotSaved(Event):
    """The state file couldn't be written: a restart would forget what failed over."""

    reason: str


@attrs.frozen(kw_only=True)
class Quarantined(Event):
    """A stored message can't be read any more: it was put aside, and somebody must look."""

    queue: EntityPath
    sequence_number: int


@attrs.frozen(kw_only=True)
class MovedToPoison(Event):
    """A message was dequeued too often, and went to the queue for poison."""

    queue: EntityPath
    to: EntityPath
    sequence_number: int  # that it had in `queue`
    deliveries: int


@attrs.frozen(kw_only=True)
class SessionStateDamaged(Event):
    """The stored state of a session can't be read any more; its messages go on. Told once."""

    queue: EntityPath
    session_id: str


@attrs.frozen(kw_only=True)
class ClaimHeld(Event):
    """A message's body can't be had from the claim store: the message waits for it."""

    queue: EntityPath
    claim: str
    reason: str


@attrs.frozen(kw_only=True)
class ClaimLost(Event):
    """A message's body is gone or damaged: the message went to the dead letters (a red state)."""

    queue: EntityPath
    claim: str
    reason: str
    description: str


@attrs.frozen(kw_only=True)
class ClaimCopyDropped(Event):
    """A copy of a message came when the first one was completed long ago: it's completed too."""

    queue: EntityPath
    claim: str


@attrs.frozen(kw_only=True)
class ClaimLeftBehind(Event):
    """A body that nobody needs couldn't be marked or removed: age alone removes it."""

    claim: str
    reason: str


@attrs.frozen(kw_only=True)
class ClaimsCollected(Event):
    """A round through the claim store is over."""

    kept: int
    removed: int


@attrs.frozen(kw_only=True)
class ClaimCollectionFailed(Event):
    """A round through the claim store was broken off; the next one comes."""

    reason: str


@attrs.frozen(kw_only=True)
class LogLinesDropped(Event):
    """So many lines are missing before this one: nobody read the log, or its disk was full."""

    lines: int


@attrs.frozen(kw_only=True)
class ConnectionLost(Event):
    """A client's connection ended with an error of the transport or the protocol."""

    peer: str  # host:port, empty where it was gone before that was known
    reason: str


@attrs.frozen(kw_only=True)
class ConnectionCrashed(Event):
    """A bug ended one connection; the others go on."""

    peer: str
    traceback: str


@attrs.frozen(kw_only=True)
class WorkDetected(Event):
    """A queue has work again, or more of it, and gets so many tasks."""

    queue: EntityPath
    depth: int | None
    tasks: int


@attrs.frozen(kw_only=True)
class TasksEnded(Event):
    """A queue is idle, and has so many tasks left."""

    queue: EntityPath
    tasks: int


@attrs.frozen(kw_only=True)
class ItemFailed(Event):
    """A handler failed on a message. It comes again, or is poison."""

    queue: EntityPath
    message_id: str
    attempts: int
    reason: str


@attrs.frozen(kw_only=True)
class Poisoned(Event):
    """A listener put a message where nobody tries it again."""

    queue: EntityPath
    message_id: str
    attempts: int
    reason: str


@attrs.frozen(kw_only=True)
class SettledTooLate(Event):
    """A message was worked on, and its lock had ended before that was known: it comes again."""

    queue: EntityPath
    message_id: str


@attrs.frozen(kw_only=True)
class LockTooShort(Event):
    """So many settlements came too late that messages should be locked for `seconds`."""

    queue: EntityPath
    seconds: float
    late_share: float


@attrs.frozen(kw_only=True)
class Billed(Event):
    """What a listener's queue would be billed since the start. None: that isn't known yet."""

    queue: EntityPath
    operations: int
    messages: int
    per_message: float | None
    per_idle_day: float | None


@attrs.frozen(kw_only=True)
class ListenerPaused(Event):
    """What a handler needs is down: its listener takes nothing for so long."""

    seconds: float
    reason: str


@attrs.frozen(kw_only=True)
class ListenerFailed(Event):
    """A queue couldn't be read, or a message not be settled; the listener tries again."""

    queue: EntityPath
    reason: str


@attrs.frozen(kw_only=True)
class TriggersLost(Event):
    """Nobody tells any more what comes to the queues: their listeners poll."""

    gateway: str  # or the topic
    reason: str


@attrs.frozen(kw_only=True)
class TriggersRegained(Event):
    """From now on listeners are told again, and don't poll."""

    gateway: str  # or the topic


@attrs.frozen(kw_only=True)
class TriggersHeldUp(Event):
    """The topic of the triggers takes none: listeners hear later of what has come meanwhile."""

    topic: str
    reason: str
