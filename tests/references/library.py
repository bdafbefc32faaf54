"""The public library of the package, and its lists in docs/reference/library.md."""

import inspect
import re
from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final

from tests.references.tables import table

# The names that a program may import, by their modules. Everything else may change in any version.
PUBLIC: Final[dict[str, tuple[str, ...]]] = {
    "gateway.listening": (
        "QueueListener",
        "Submitter",
        "ListenerOptions",
        "Item",
        "Json",
        "RAW",
        "Trigger",
        "Triggers",
        "FormatError",
        "EndpointDown",
        "SubmitError",
    ),
    "gateway.listening.exchange": ("Requester", "replying"),
    "gateway.listening.intents": ("update", "steps"),
    "gateway.listening.stores.sqlite": ("SqliteValues",),
    "gateway.listening.stores.folder": ("FolderValues",),
    "gateway.listening.stores.values": ("Values",),
    "gateway.brokers.storage_queue.blob_values": ("AzureBlobValues",),
    "gateway.ports": ("Broker", "Receiver", "Observer", "Versioned"),
    "gateway.capabilities": (
        "Topology",
        "Peeks",
        "Sessions",
        "Schedules",
        "ReceivesDeferred",
        "SendsMany",
        "SettlesMany",
    ),
    "gateway.offering": ("offered", "required"),
    "gateway.domain.message": (
        "Message",
        "Delivery",
        "Complete",
        "Abandon",
        "DeadLetter",
        "Defer",
        "AcceptedBy",
    ),
    "gateway.domain.entity": ("EntityPath", "QueueProperties"),
    "gateway.domain.errors": (
        "GatewayError",
        "MessageError",
        "BrokerError",
        "Unavailable",
        "OutcomeUnknown",
        "Busy",
        "QuotaExceeded",
        "NotAuthorized",
        "EntityNotFound",
        "MessageTooLarge",
        "InvalidRequest",
        "LockLost",
        "NotSupported",
    ),
    "gateway.app.runtime": ("Runtime",),
    "gateway.store.embedded.broker": ("EmbeddedBroker", "EmbeddedOptions"),
}
_EMPTY_LINE: Final = re.compile(r"\n\s*\n")


def value_of(module: str, name: str) -> Any:
    return getattr(import_module(module), name)


def summary(value: Any) -> str:
    """The first paragraph of its docstring, in one line; empty: it has none of its own."""
    paragraph = _EMPTY_LINE.split(inspect.cleandoc(value.__doc__ or ""))[0]
    return " ".join(paragraph.split())


def parts() -> Mapping[str, str]:
    """A table of each module's names, below its heading."""
    tables = [
        f"## `{module}`\n\n"
        + table(("name", "is"), *((f"`{name}`", summary(value_of(module, name))) for name in names))
        for module, names in PUBLIC.items()
    ]
    return {"modules": "\n".join(tables)}
