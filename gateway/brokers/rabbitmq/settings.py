"""
The settings of RabbitMQ's queues: the arguments to create them with, and the settings that can be
read later.
"""

import re
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any, Final

import attrs

from gateway.brokers.rabbitmq.channels import Channels
from gateway.brokers.rabbitmq.management import PluginManagement
from gateway.domain.entity import QueueProperties
from gateway.domain.errors import InvalidRequest, OutcomeUnknown, Unavailable
from gateway.wire.rabbitmq.errors import ACCESS_REFUSED, PRECONDITION_FAILED, error_of
from gateway.wire.rabbitmq.management import ManagedQueue
from gateway.wire.rabbitmq.queues import DeclareQueue

UNLIMITED: Final = 2**31 - 1  # deliveries; the number that the legacy client asks for
_MOST_MEGABYTES: Final = 2**31 - 1  # of .NET's int, as Service Bus has this number
_MEBIBYTE: Final = 1024 * 1024  # bytes: Service Bus counts megabytes, RabbitMQ bytes
_MILLISECOND: Final = timedelta(milliseconds=1)
_LONGEST: Final = 2**32 - 1  # milliseconds: RabbitMQ refuses more
# The properties that arguments of a queue hold in any value.
KEEPS: Final = frozenset(
    {"max_delivery_count", "default_time_to_live", "max_size_in_megabytes", "auto_delete_on_idle"}
)
DEAD_LETTERS: Final = "x-dead-letter-exchange"  # the argument
_DEFAULT_LIMIT: Final = 20  # failed deliveries, where RabbitMQ has a limit by default
# The versions of RabbitMQ since which queues have a delivery limit by default, and since which
# quorum queues can be spread over the nodes.
_LIMITED_BY_DEFAULT: Final = (4, 0)
_BALANCED: Final = (3, 10)
_NEVER: Final = "pairgate-asks"  # not a type of queue, so a missing queue isn't created by asking
_MOST_QUESTIONS: Final = 20  # each answer shows one argument, and RabbitMQ has fewer
_LIMITS: Final = frozenset(
    {"x-delivery-limit", "x-expires", "x-max-length", "x-max-length-bytes", "x-message-ttl"}
)
_INEQUIVALENT: Final = re.compile(
    r"inequivalent arg '(?P<name>[^']+)' .* but current is "
    r"(?:none|(?:the value )?'(?P<value>[^']*)'(?: of type '(?P<type>\w+)')?)"
)


def arguments_for(
    properties: QueueProperties | None, dead_letters: str | None, version: str
) -> Mapping[str, Any]:
    """
    The arguments of a quorum queue; without properties, of a dead-letter queue.

    The node that leads fewest queues leads the new one, too: by default all queues that a client
    declares have its own node as their leader, so that the loss of that node concerns all of them.

    The caller has refused every property that isn't in `KEEPS`.

    Raises:
        InvalidRequest: names the property, and RabbitMQ's limit.
    """
    numbers = _numbers(version)
    arguments: dict[str, Any] = {
        "x-queue-type": "quorum",
        "x-overflow": "reject-publish",
        **({"x-queue-leader-locator": "balanced"} if numbers >= _BALANCED else {}),
    }
    limit = UNLIMITED if properties is None else properties.max_delivery_count
    if limit < UNLIMITED:
        arguments["x-delivery-limit"] = limit - 1  # RabbitMQ counts failed deliveries only
    elif numbers >= _LIMITED_BY_DEFAULT:
        arguments["x-delivery-limit"] = -1
    if properties is None:
        return arguments
    if dead_letters is not None:
        arguments[DEAD_LETTERS] = ""
        arguments["x-dead-letter-routing-key"] = dead_letters
        arguments["x-dead-letter-strategy"] = "at-least-once"
    arguments["x-max-length-bytes"] = properties.max_size_in_megabytes * _MEBIBYTE
    if properties.default_time_to_live is not None:
        arguments["x-message-ttl"] = _milliseconds(
            "default_time_to_live", properties.default_time_to_live
        )
    if properties.auto_delete_on_idle is not None:
        arguments["x-expires"] = _milliseconds(
            "auto_delete_on_idle", properties.auto_delete_on_idle
        )
    return arguments


def _milliseconds(name: str, span: timedelta) -> int:
    """Rounded up, since RabbitMQ takes none for zero."""
    milliseconds = -(-span // _MILLISECOND)
    if milliseconds > _LONGEST:
        raise InvalidRequest(
            f"{name}: RabbitMQ's limit is {_LONGEST} milliseconds (49 days, 17 hours), got {span}"
        )
    return milliseconds


def properties_of(
    settings: Mapping[str, str | int] | None, lock_duration: float, version: str = ""
) -> QueueProperties:
    """
    The properties of a queue with these settings. None: they aren't known, so that only the lock
    duration is the queue's, and no delivery limit is told.
    """
    lock = timedelta(seconds=lock_duration)
    if settings is None:
        return QueueProperties(lock_duration=lock, max_delivery_count=UNLIMITED)
    numbers = {name: int(value) for name, value in settings.items() if name in _LIMITS}
    default = _DEFAULT_LIMIT if _numbers(version) >= _LIMITED_BY_DEFAULT else -1
    limit = numbers.get("x-delivery-limit", default)
    size = numbers.get("x-max-length-bytes")
    return QueueProperties(
        lock_duration=lock,
        max_delivery_count=UNLIMITED if limit < 0 else limit + 1,
        # the longest that management can tell, where there is no limit
        max_size_in_megabytes=_MOST_MEGABYTES if size is None else max(1, size // _MEBIBYTE),
        default_time_to_live=_span(numbers.get("x-message-ttl")),
        auto_delete_on_idle=_span(numbers.get("x-expires")),
        # RabbitMQ dead-letters each expired message of a queue that dead-letters at all
        dead_lettering_on_expiration=DEAD_LETTERS in settings,
    )


def _span(milliseconds: int | None) -> timedelta | None:
    return None if milliseconds is None else milliseconds * _MILLISECOND


def _numbers(version: str) -> tuple[int, ...]:
    """The major and the minor version; (0,) if the text has none."""
    numbers = version.split(".")[:2]
    return tuple(int(each) for each in numbers) if all(map(str.isdecimal, numbers)) else (0,)


# The settings in effect: arguments of the queue, and policies.


@attrs.frozen(kw_only=True)
class Settings:
    """
    The settings in effect for a queue, by the names of arguments.

    `by_policy` names the settings that come from a policy, and `policies` names those policies.
    """

    values: Mapping[str, str | int]
    by_policy: frozenset[str] = frozenset()
    policies: tuple[str, ...] = ()

    def of(self, name: str) -> str | None:
        value = self.values.get(name)
        return None if value is None else str(value)

    def named_by(self, *names: str) -> str:
        """The end of a sentence about these settings: names the policies, if they come from any."""
        return f", by policy {', '.join(self.policies)}" if self.by_policy & {*names} else ""


def settings_of(queue: ManagedQueue) -> Settings | None:
    """
    The settings in effect for a queue; None if its policies aren't known yet.

    Of two limits the smaller one is in effect. Otherwise an argument overrides a policy, except for
    the overflow of a quorum queue (observed with RabbitMQ 3.10.8; not documented).
    """
    if queue.policy is None:
        return None
    values: dict[str, str | int] = {f"x-{name}": value for name, value in queue.policy.items()}
    by_policy = set(values)
    for name, value in queue.arguments.items():
        if name in by_policy and _policy_wins(name, value, values[name], queue.kind):
            continue
        values[name] = value
        by_policy.discard(name)
    values["x-queue-type"] = queue.kind
    return Settings(values=values, by_policy=frozenset(by_policy), policies=queue.policies)


def _policy_wins(name: str, argument: str | int, policy: str | int, kind: str) -> bool:
    if name in _LIMITS and isinstance(argument, int) and isinstance(policy, int):
        return 0 <= policy < argument or argument < 0  # -1 means no limit
    return name == "x-overflow" and kind == "quorum"


async def read_settings(
    channels: Channels, management: PluginManagement | None, queue: str
) -> Settings | None:
    """
    The settings in effect, as far as they are known now: of a new queue, the arguments without the
    policies. None: these credentials may not see them, or the plugin doesn't answer.

    Raises:
        BrokerError: the queue doesn't exist, or there is no answer.
    """
    await channels.inspect(queue)
    if management is None:
        arguments = await _arguments(channels, queue)
        return None if arguments is None else Settings(values=arguments)
    try:
        managed = await management.queue(queue)
    except (Unavailable, OutcomeUnknown):  # the broker itself has answered
        return None
    return settings_of(managed) or Settings(values=managed.arguments)


async def doubts_of(
    channels: Channels, management: PluginManagement | None, queue: str, *, is_backlog: bool
) -> list[str]:
    """
    The settings of the queue by which messages may be lost.

    Raises:
        BrokerError: the queue doesn't exist, or there is no answer.
    """
    await channels.inspect(queue)
    settings: Settings | None = None
    if management is not None:
        unknown = "its policies aren't known: new queues have statistics after ten seconds"
        try:
            settings = settings_of(await management.queue(queue))
        except (Unavailable, OutcomeUnknown) as error:  # the broker itself has answered
            unknown = f"its settings can't be read: the management plugin doesn't answer ({error})"
    else:
        arguments = await _arguments(channels, queue)
        settings = None if arguments is None else Settings(values=arguments)
        unknown = (
            "its settings can't be read without the permission configure on it, or `management`;"
            " see to it that it is a quorum queue, that overflow is reject-publish, and that no"
            " policy says else"
        )
    if settings is None:
        return [unknown]
    _, version = await channels.server()
    doubts = list(_doubts(settings))
    if is_backlog:
        doubts += _doubts_of_backlog(settings, version)
    return doubts


def _doubts(settings: Settings) -> Iterator[str]:
    kind = settings.of("x-queue-type") or "classic"
    if kind != "quorum":
        yield f"it is a {kind} queue, not quorum"
    limits = [name for name in ("x-max-length", "x-max-length-bytes") if settings.of(name)]
    if limits and settings.of("x-overflow") not in {"reject-publish", "reject-publish-dlx"}:
        by = settings.named_by("x-overflow", *limits)
        yield f"it drops its oldest messages when it is full (overflow drop-head{by})"


def _doubts_of_backlog(settings: Settings, version: str) -> Iterator[str]:
    limit = settings.of("x-delivery-limit")
    if limit is None and _numbers(version) >= _LIMITED_BY_DEFAULT:
        limit = "20 (the broker's default)"
    if limit not in {None, "-1"}:
        by = settings.named_by("x-delivery-limit")
        yield f"it gives a message up after {limit} failed deliveries{by}"
    if settings.of("x-message-ttl") is not None:
        yield f"its messages expire{settings.named_by('x-message-ttl')}"
    if settings.of("x-expires") is not None:
        yield f"it is deleted when idle{settings.named_by('x-expires')}"


async def _arguments(channels: Channels, queue: str) -> dict[str, str] | None:
    """
    The arguments of a queue, as text; None if the right to see them is missing.

    Declaring a queue again with different arguments is refused, and the refusal names the first
    difference and its current value, so each answer shows one argument. The type is wrong until it
    is known, so that a missing queue isn't created.
    """
    known: dict[str, str] = {}
    asked: dict[str, Any] = {"x-queue-type": _NEVER}
    for _ in range(_MOST_QUESTIONS):
        method = DeclareQueue(queue=queue, durable=True, arguments=dict(asked))
        refusal = await channels.refusal(method)
        if refusal is None:
            return known
        code, text = refusal
        if code == ACCESS_REFUSED:
            return None
        match = _INEQUIVALENT.search(text) if code == PRECONDITION_FAILED else None
        if match is None:
            raise error_of(code, text)
        name, value = match["name"], match["value"]
        if name in known or not name.startswith("x-"):
            return known
        if value is None:
            asked.pop(name, None)
        else:
            known[name] = value
            asked[name] = value if match["type"] in {None, "longstr"} else int(value)
    return known
