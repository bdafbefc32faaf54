"""
The scalable queue listener, as a library: a handler runs for each message of some queues.

Each name is imported at its first use: a gateway, which reads only the options, starts faster.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from gateway.listening.errors import EndpointDown, FormatError, SubmitError
    from gateway.listening.items import RAW, Item, Json
    from gateway.listening.listener import QueueListener
    from gateway.listening.options import ListenerOptions
    from gateway.listening.submit import Submitter
    from gateway.listening.triggers import Trigger, Triggers

__all__ = [
    "RAW",
    "EndpointDown",
    "FormatError",
    "Item",
    "Json",
    "ListenerOptions",
    "QueueListener",
    "SubmitError",
    "Submitter",
    "Trigger",
    "Triggers",
]

_MODULE_OF: Final = {
    "RAW": "items",
    "EndpointDown": "errors",
    "FormatError": "errors",
    "Item": "items",
    "Json": "items",
    "ListenerOptions": "options",
    "QueueListener": "listener",
    "SubmitError": "errors",
    "Submitter": "submit",
    "Trigger": "triggers",
    "Triggers": "triggers",
}


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    return found
