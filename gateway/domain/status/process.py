"""
The status of a process at a moment, as operators see it: a gateway, a syphon, a listener, an agent.

`app/status/board.py` collects it. `figures` has what the metadata of the fields mean.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, TypeVar

import attrs
from attrs import field

from gateway.domain.access import ClientLimit
from gateway.domain.billing import UsageReport
from gateway.domain.health.abilities import AbilityStatus
from gateway.domain.health.distribution import Distribution
from gateway.domain.health.expiry import Expiry
from gateway.domain.status.figures import (
    ALL,
    EACH,
    KEY,
    LEAST,
    SUM,
    TOTAL,
    counter,
    each_of,
    gauge,
    histogram,
    keyed,
    label,
    merge,
    newest,
    place,
)
from gateway.domain.status.pair import (
    SENDS_TOOK,
    PairStatus,
    SendCount,
    SendDuration,
    counts_of,
    sent,
    took,
)
from gateway.domain.status.sections import Section, Sections, merge_sections

T = TypeVar("T")
_STORES: Final = frozenset({"embedded", "memory"})
_NEVER: Final = datetime.min.replace(tzinfo=UTC)


@attrs.frozen(kw_only=True)
class OperationDuration:
    """
    Seconds that receives with messages, or settlements, of one namespace took. `error` is the class
    of the error; empty: they succeeded.
    """

    name: str = field(metadata=KEY)  # as in `health.operation_times`
    error: str = field(metadata=KEY)
    seconds: Distribution = field(metadata=TOTAL)


@attrs.frozen(kw_only=True)
class NamespaceStatus:
    """An open namespace of the configuration, with its abilities and quota usage."""

    name: str = field(metadata=label("namespace"))
    kind: str  # the scheme of its URL
    role: str  # primary, secondary, or only
    usage: UsageReport = field(
        metadata=EACH
        | place("")
        | counter(
            "messaging_client_consumed_messages",
            "Received messages.",
            labels=("messaging_system", "messaging_operation_name", "pairgate_namespace"),
            of=lambda space: {("pairgate", "receive", space.name): space.usage.received},
            alone=True,
        )
    )
    abilities: Mapping[str, AbilityStatus] = field(  # by their names
        factory=dict, metadata=newest(lambda each: each.seen or _NEVER) | keyed("ability")
    )
    operations: tuple[OperationDuration, ...] = field(
        default=(),
        metadata=ALL
        | took(
            lambda space: (
                ((each.name, _type_of(each), space.name, "", each.error), each.seconds)
                for each in space.operations
            )
        ),
    )


def _type_of(operation: OperationDuration) -> str:
    return "receive" if operation.name == "receive" else "settle"


def _namespaces(
    own: Sequence[NamespaceStatus],
    others: Sequence[Sequence[NamespaceStatus]],
    ended: Sequence[Sequence[NamespaceStatus]],
) -> tuple[NamespaceStatus, ...]:
    """The parent of workers sees all operations on its own stores: they aren't counted twice."""
    usages = {each.name: each.usage for each in own if each.kind in _STORES}
    return tuple(
        attrs.evolve(each, usage=usages.get(each.name, each.usage))
        for each in each_of(own, others, ended)
    )


@attrs.frozen(kw_only=True)
class ConnectionCount:
    """The clients' connections to the endpoints of one protocol, since the start but for `open`."""

    protocol: str = field(metadata=label("protocol"))
    open: int = field(  # now
        metadata=SUM
        | gauge("pairgate_connections", "Connections of clients, by the endpoint's protocol.")
    )
    opened: int = field(
        metadata=counter("pairgate_connections_opened", "Connections that were accepted.")
    )
    refused: int = field(  # surplus ones
        metadata=counter(
            "pairgate_connections_refused",
            "Connections that were closed because there were too many.",
        )
    )
    limit: int = field(  # of all processes together
        metadata=gauge("pairgate_connections_limit", "Limit of these connections.")
    )


@attrs.frozen(kw_only=True)
class CommitStatus:
    """The commits of one embedded store."""

    name: str = field(metadata=label("namespace"))  # of its namespace, or of the spool
    seconds: Distribution = field(
        metadata=histogram(
            "pairgate_store_commit_duration_seconds",
            "Time of a commit of an embedded store, the sync of the disk included.",
        )
    )
    operations: Distribution = field(  # in each commit
        metadata=histogram("pairgate_store_commit_operations", "Operations that share a commit.")
    )


@attrs.frozen(kw_only=True)
class RefusalCount:
    """Requests whose credentials were refused, since the start."""

    protocol: str = field(metadata=label("protocol"))  # of the endpoint
    reason: str = field(metadata=label("reason"))
    times: int = field(
        metadata=counter(
            "pairgate_credentials_refused",
            "Requests with refused credentials, by the endpoint's protocol and the reason.",
        )
    )


@attrs.frozen(kw_only=True)
class LimitCount:
    """
    The number of times since the start that a client was refused, because it had reached a limit.
    """

    # A credential or an address; empty: clients beyond those that are counted by name.
    client: str = field(metadata=KEY)
    limit: str = field(metadata=KEY)  # connections, requests, bytes
    times: int = field(metadata=TOTAL)


def _by_limit(status: "Status") -> Mapping[str, int]:
    """The refusals by limit only; the clients' names are in the status."""
    sums = Counter(dict.fromkeys((limit.value for limit in ClientLimit), 0))
    for each in status.limited:
        sums[each.limit] += each.times
    return sums


@attrs.frozen(kw_only=True)
class Alarm:
    """An event of the level `error`, in the last ten minutes: a red state, unless it is over."""

    event: str = field(metadata=label("event"))
    times: int = field(  # since the start
        metadata=gauge(
            "pairgate_alarm",
            "1: the event was a red state in the last ten minutes; 0: it is over.",
            of=lambda alarm: not alarm.over,
        )
    )
    last: datetime
    text: str
    over: bool = False  # the cause is known to have ended since


def _alarms(
    own: Sequence[Alarm], others: Sequence[Sequence[Alarm]], ended: object
) -> tuple[Alarm, ...]:
    """Each event once, as it was last; the newest alarm first."""
    alarms = sorted((one for each in (own, *others) for one in each), key=lambda one: one.last)
    times: Counter[str] = Counter()
    for each in alarms:
        times[each.event] += each.times
    newest_ones = {each.event: each for each in alarms}.values()
    found = [attrs.evolve(each, times=times[each.event]) for each in newest_ones]
    return tuple(sorted(found, key=lambda one: one.last, reverse=True))


@attrs.frozen(kw_only=True)
class Status:
    """The status of one process. `pair` is None without a pair."""

    at: datetime
    started: datetime = field(
        metadata=gauge(
            "pairgate_start_time_seconds", "Start of the process, in seconds since 1970."
        )
    )
    namespaces: tuple[NamespaceStatus, ...] = field(metadata=merge(_namespaces))
    pair: PairStatus | None = field(default=None, metadata=EACH)
    events: Mapping[str, int] = field(  # since the start, by name
        factory=dict,
        metadata=counter(
            "pairgate_events", "Events, by their names in the log.", labels=("event",)
        ),
    )
    alarms: tuple[Alarm, ...] = field(default=(), metadata=merge(_alarms))
    refused: tuple[RefusalCount, ...] = field(default=(), metadata=ALL)
    limited: tuple[LimitCount, ...] = field(
        default=(),
        metadata=ALL
        | counter(
            "pairgate_client_limit_refused",
            "Connections, requests and bodies of clients that had as many as one client may.",
            labels=("limit",),
            of=_by_limit,
        ),
    )
    connections: tuple[ConnectionCount, ...] = field(default=(), metadata=EACH)
    commits: tuple[CommitStatus, ...] = ()
    loop_lag: Distribution | None = field(  # seconds; None: not measured
        default=None,
        metadata=histogram(
            "pairgate_event_loop_lag_seconds", "How late the event loop runs what is due."
        ),
    )
    # When the tokens for the namespaces (and for `claims`) expire, by name.
    token_expiries: Mapping[str, datetime] = field(
        factory=dict,
        metadata=LEAST  # the first date
        | gauge(
            "pairgate_token_expiry_time_seconds",
            "When the token for a namespace expires, in seconds since 1970.",
            labels=("namespace",),
        ),
    )
    tasks: int | None = field(  # of the event loop; None: not counted
        default=None,
        metadata=SUM | gauge("pairgate_event_loop_tasks", "Living tasks of the event loop."),
    )
    expiries: tuple[Expiry, ...] = ()
    sends: tuple[SendCount, ...] = field(  # of a gateway without a pair
        default=(),
        metadata=ALL
        | sent(lambda status: counts_of(status.sends, "primary") if status.sends else {}),
    )
    durations: tuple[SendDuration, ...] = field(  # of these sends
        default=(), metadata=ALL | SENDS_TOOK
    )
    # Of parts that the core doesn't know.
    sections: Sections = field(factory=dict, metadata=merge(merge_sections))

    def of(self, section: Section[T]) -> T:
        """The value of that section."""
        value: T = self.sections.get(section, section.missing)
        return value


@attrs.frozen(kw_only=True)
class Workers:
    """The statuses of a gateway's workers."""

    running: Sequence[Status] = ()
    ended: Sequence[Status] = ()  # as they were last
