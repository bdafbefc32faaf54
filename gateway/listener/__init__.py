"""The scalable queue listener, as a library: a handler runs for each message of some queues."""

from gateway.listener.errors import EndpointDown, FormatError, SubmitError
from gateway.listener.items import RAW, Item, Json
from gateway.listener.listener import QueueListener
from gateway.listener.options import ListenerOptions
from gateway.listener.submit import Submitter
from gateway.listener.triggers import Trigger, Triggers

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
