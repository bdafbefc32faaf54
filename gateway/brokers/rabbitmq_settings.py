"""The settings of RabbitMQ's queues: what is asked for, and what can be learned of it later."""

import re
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any, Final

import attrs
from pamqp import commands

from gateway.brokers.rabbitmq_channels import Channels
from gateway.brokers.rabbitmq_management import Management
from gateway.domain.entity import EntityStatus, QueueProperties
from gateway.domain.errors import NotSupported
from gateway.wire.rabbitmq_errors import ACCESS_REFUSED, PRECONDITION_FAILED, error_of
from gateway.wire.rabbitmq_management import ManagedQueue

UNLIMITED: Final = 2**31 - 1  # deliveries, as the legacy client asks for it
_MEBIBYTE: Final = 1024 * 1024
_MILLISECOND: Final = timedelta(milliseconds=1)
_LONGEST: Final = 2**32 - 1
_LIMITED_BY_DEFAULT: Final = 4  # the version of RabbitMQ since which a queue has a delivery limit
_NEVER: Final = "pairgate-asks"  # no type of a queue: a queue that is missing isn't made
_MOST_QUESTIONS: Final = 20
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
    The arguments of a quorum queue; without properties it is one for dead letters.

    Raises:
        NotSupported: names the property that RabbitMQ can't have.
    """
    arguments: dict[str, Any] = {"x-queue-type": "quorum", "x-overflow": "reject-publish"}
    limit = UNLIMITED if properties is None else properties.max_delivery_count
    if limit < UNLIMITED:
        arguments["x-delivery-limit"] = limit - 1  # RabbitMQ counts those that failed
    elif _major(version) >= _LIMITED_BY_DEFAULT:
        arguments["x-delivery-limit"] = -1
    if properties is None:
        return arguments
    _refuse(properties)
    if dead_letters is not None:
        arguments["x-dead-letter-exchange"] = ""
        arguments["x-dead-letter-routing-key"] = dead_letters
        arguments["x-dead-letter-strategy"] = "at-least-once"
    arguments["x-max-length-bytes"] = properties.max_size_in_megabytes * _MEBIBYTE
    if properties.default_time_to_live is not None:
        milliseconds = properties.default_time_to_live // _MILLISECOND
        if milliseconds <= _LONGEST:
            arguments["x-message-ttl"] = milliseconds
    if properties.auto_delete_on_idle is not None:
        arguments["x-expires"] = min(properties.auto_delete_on_idle // _MILLISECOND, _LONGEST)
    return arguments


def properties_of(lock_duration: float) -> QueueProperties:
    """What is known of any queue without asking for more: no limit that anybody has told of."""
    return QueueProperties(
        lock_duration=timedelta(seconds=lock_duration), max_delivery_count=UNLIMITED
    )


def _refuse(properties: QueueProperties) -> None:
    asked = {
        "requires_session": properties.requires_session,
        "requires_duplicate_detection": properties.requires_duplicate_detection,
        "forward_to": properties.forward_to is not None,
        "forward_dead_lettered_messages_to": (
            properties.forward_dead_lettered_messages_to is not None
        ),
        "status": properties.status is not EntityStatus.ACTIVE,
        "user_metadata": properties.user_metadata is not None,
        "max_message_size": properties.max_message_size is not None,
    }
    wrong = next((name for name, is_wrong in asked.items() if is_wrong), None)
    if wrong is not None:
        raise NotSupported(f"{wrong}: a queue of RabbitMQ can't have that")


def _major(version: str) -> int:
    first = version.partition(".")[0]
    return int(first) if first.isdecimal() else 0


# What a queue was made with, and what policies make of it


@attrs.frozen(kw_only=True)
class Settings:
    """
    What holds for a queue, under the names of arguments.

    `by_policy` names what a policy says, and `policies` those policies.
    """

    values: Mapping[str, str | int]
    by_policy: frozenset[str] = frozenset()
    policies: tuple[str, ...] = ()

    def of(self, name: str) -> str | None:
        value = self.values.get(name)
        return None if value is None else str(value)

    def said_by(self, *names: str) -> str:
        """The end of a sentence on these settings."""
        return f", by policy {', '.join(self.policies)}" if self.by_policy & {*names} else ""


def settings_of(queue: ManagedQueue) -> Settings | None:
    """
    What holds for a queue that has policies; None: those aren't known yet.

    Of two limits the smaller one holds. Else an argument counts more than a policy, but not for the
    overflow of a quorum queue (as RabbitMQ 3.10.8 does it; its documentation says nothing of that).
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
        return 0 <= policy < argument or argument < 0  # -1 is no limit
    return name == "x-overflow" and kind == "quorum"


async def doubts_of(
    channels: Channels, management: Management | None, queue: str, *, is_backlog: bool
) -> list[str]:
    """
    What may lose messages of that queue, as far as its settings tell.

    Raises:
        BrokerError: there is no such queue, or no answer.
    """
    await channels.look(queue)
    if management is not None:
        settings = settings_of(await management.queue(queue))
        unknown = "its policies aren't known: new queues have statistics after ten seconds"
    else:
        arguments = await _arguments(channels, queue)
        settings = None if arguments is None else Settings(values=arguments)
        unknown = (
            "its settings can't be read without the right configure on it, or `management`; see to"
            " it that it is a quorum queue, that overflow is reject-publish, and that no policy"
            " says else"
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
        by = settings.said_by("x-overflow", *limits)
        yield f"it drops its oldest messages when it is full (overflow drop-head{by})"


def _doubts_of_backlog(settings: Settings, version: str) -> Iterator[str]:
    limit = settings.of("x-delivery-limit")
    if limit is None and _major(version) >= _LIMITED_BY_DEFAULT:
        limit = "20 (the broker's default)"
    if limit not in {None, "-1"}:
        by = settings.said_by("x-delivery-limit")
        yield f"it gives a message up after {limit} failed deliveries{by}"
    if settings.of("x-message-ttl") is not None:
        yield f"its messages expire{settings.said_by('x-message-ttl')}"
    if settings.of("x-expires") is not None:
        yield f"it is deleted when idle{settings.said_by('x-expires')}"


async def _arguments(channels: Channels, queue: str) -> dict[str, str] | None:
    """
    The arguments of a queue, as text; None: the right to see them is missing.

    To declare it once more with others is refused, and the refusal names the first that differs,
    and what it is: each answer tells one. The type is wrong until it is known, so that no queue is
    made of a name that is missing.
    """
    known: dict[str, str] = {}
    asked: dict[str, Any] = {"x-queue-type": _NEVER}
    for _ in range(_MOST_QUESTIONS):
        method = commands.Queue.Declare(queue=queue, durable=True, arguments=dict(asked))
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
    return known  # noqa: ASYNC910 the refusals have waited
