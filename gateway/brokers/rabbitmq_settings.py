"""The settings of RabbitMQ's queues: what is asked for, and what can be learned of it later."""

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

from pamqp import commands

from gateway.brokers.rabbitmq_channels import Channels
from gateway.domain.entity import EntityStatus, QueueProperties
from gateway.domain.errors import NotSupported
from gateway.wire.rabbitmq_errors import ACCESS_REFUSED, PRECONDITION_FAILED, error_of

UNLIMITED: Final = 2**31 - 1  # deliveries, as the legacy client asks for it
_MEBIBYTE: Final = 1024 * 1024
_MILLISECOND: Final = timedelta(milliseconds=1)
_LONGEST: Final = 2**32 - 1
_LIMITED_BY_DEFAULT: Final = 4  # the version of RabbitMQ since which a queue has a delivery limit
_NEVER: Final = "pairgate-asks"  # no type of a queue: a queue that is missing isn't made
_MOST_QUESTIONS: Final = 20
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


# What a queue was made with


async def doubts_of(channels: Channels, queue: str, *, is_backlog: bool) -> list[str]:
    """
    What may lose messages of that queue, as far as its arguments tell.

    Raises:
        BrokerError: there is no such queue, or no answer.
    """
    await channels.look(queue)
    arguments = await _arguments(channels, queue)
    if arguments is None:
        return [
            "its settings can't be read without the right configure on it; see to it that it is"
            " a quorum queue, that overflow is reject-publish, and that no policy says else"
        ]
    _, version = await channels.server()
    doubts = []
    kind = arguments.get("x-queue-type") or "classic"
    if kind != "quorum":
        doubts.append(f"it is a {kind} queue, not quorum")
    limited = "x-max-length" in arguments or "x-max-length-bytes" in arguments
    if limited and arguments.get("x-overflow") not in {"reject-publish", "reject-publish-dlx"}:
        doubts.append("it drops its oldest messages when it is full (overflow drop-head)")
    if is_backlog:
        doubts += _doubts_of_backlog(arguments, version)
    return doubts


def _doubts_of_backlog(arguments: Mapping[str, str], version: str) -> list[str]:
    doubts = []
    limit = arguments.get("x-delivery-limit")
    if limit is None and _major(version) >= _LIMITED_BY_DEFAULT:
        limit = "20 (the broker's default)"
    if limit not in {None, "-1"}:
        doubts.append(f"it gives a message up after {limit} failed deliveries")
    if "x-message-ttl" in arguments:
        doubts.append("its messages expire")
    if "x-expires" in arguments:
        doubts.append("it is deleted when idle")
    return doubts


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
