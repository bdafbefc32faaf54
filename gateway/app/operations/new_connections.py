"""The ends of a new configuration: strings for its clients, and definitions for RabbitMQ."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from gateway.app.operations.new_config import (
    ACCOUNT,
    KEYS,
    POLICY,
    REST,
    Answers,
    NewNamespace,
    read_config,
)
from gateway.config.endpoints import ONE_PORT, STORAGE_QUEUE
from gateway.config.shipped import example_text

_EVERYWHERE: Final = ("0.0.0.0", "[::]")  # compared, not listened at
_LABELS: Final = ("rabbit-north", "contoso-north")  # in the shipped definitions
_USER, _VHOST, _QUEUE = "gateway", "pairgate", "orders"


def client_strings(answers: Answers, folder: Path) -> dict[str, str]:
    """
    The variables that clients read, for a shell, which puts the keys in: none of them is shown.
    """
    host = "HOST" if answers.host in _EVERYWHERE else answers.host
    at = {protocol: f"{host}:{answers.ports[protocol]}" for protocol in answers.protocols}
    key = f"$(cat {folder / KEYS / POLICY})"
    found = {
        "SERVICEBUS_CONNECTION_STRING": f"Endpoint=sb://{at[ONE_PORT]};SharedAccessKeyName={POLICY};"
        f"SharedAccessKey={key};UseDevelopmentEmulator=true;",
        "SERVICEBUS_REST_URL": f"http://{at[REST]}",
    }
    if answers.storage:
        found["AZURE_STORAGE_CONNECTION_STRING"] = (
            f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};"
            f"AccountKey=$(cat {folder / KEYS / 'account'});"
            f"QueueEndpoint=http://{at[STORAGE_QUEUE]}/{ACCOUNT};"
        )
    return found


def definitions(answers: Answers) -> dict[str, str]:
    """
    For each RabbitMQ, by the name of its file: the users, rights and policies that the pair needs
    there, for `rabbitmqctl import_definitions`.

    Raises:
        ConfigError: the answers make no valid configuration.
    """
    config = read_config(answers)
    label = "" if config.pairing is None else config.pairing.options.label
    return {
        f"definitions-{namespace.name}.json": _filled(template, namespace, answers, label)
        for namespace, template in _rabbits(answers)
    }


def _rabbits(answers: Answers) -> Iterator[tuple[NewNamespace, str]]:
    """Each RabbitMQ, and the shipped definitions for one of its role."""
    both = [answers.primary, *filter(None, [answers.secondary])]
    are = [each.kind == "rabbitmq" for each in both]
    templates = (
        ["rabbitmq-definitions.json"] * 2
        if are == [True, True]
        else ["rabbitmq-primary-definitions.json", "rabbitmq-backlog-definitions.json"]
    )
    for namespace, template, is_one in zip(both, templates, are, strict=False):
        if is_one:
            yield namespace, template


def _filled(template: str, namespace: NewNamespace, answers: Answers, label: str) -> str:
    """The definitions for this namespace's user and virtual host, queues and label."""
    url = urlsplit(namespace.url)
    queues = "|".join(map(re.escape, answers.queues)) or _QUEUE
    names = {_USER: unquote(url.username or _USER), _VHOST: unquote(url.path[1:]) or "/"}
    texts: Mapping[str, str] = {
        **dict.fromkeys(_LABELS, re.escape(label)),
        _QUEUE: f"({queues})" if len(answers.queues) > 1 else queues,
    }

    def replaced(value: object) -> object:
        match value:
            case dict():
                return {name: replaced(each) for name, each in value.items()}
            case list():
                return [replaced(each) for each in value]
            case str() if value in names:
                return names[value]
            case str():
                for old, new in texts.items():
                    value = value.replace(old, new)
        return value

    return json.dumps(replaced(json.loads(example_text(template))), indent=2) + "\n"
