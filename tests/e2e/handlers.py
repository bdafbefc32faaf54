"""Handlers for `pairgate listen --python`, which note their work in the current folder."""

import os
import signal
import time
from itertools import count
from pathlib import Path

import trio

from gateway.domain.message import Message
from gateway.listening import Item

NOTES = Path("notes")
LIMIT = Path("limit")  # the number of notes until which `note_within_limit` works
SOME = 100  # messages
_worked = count(1)


def note(item: Item[Message]) -> None:
    """Blocks for a while. A body that is `poison` can't be worked on."""
    body = item.message.body
    assert isinstance(body, bytes)
    if body == b"poison":
        raise ValueError("poison")
    time.sleep(0.005)
    _write(body)


def note_until_told_to_end(item: Item[Message]) -> None:
    """Note the message; ask the process to end when it has worked on some."""
    note(item)
    if next(_worked) == SOME:
        os.kill(os.getpid(), signal.SIGTERM)


async def note_without_a_thread(item: Item[Message]) -> None:
    assert isinstance(item.message.body, bytes)
    await trio.sleep(0.005)
    _write(item.message.body)


def _write(body: bytes) -> None:
    """Write the note with one call, so that it is whole even if the process is killed meanwhile."""
    notes = os.open(NOTES, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(notes, body + b"\n")
    finally:
        os.close(notes)


def note_slowly(item: Item[Message]) -> None:
    """Note a message after a pause so long that one process alone has much to do."""
    assert isinstance(item.message.body, bytes)
    time.sleep(0.05)
    _write(item.message.body)


def note_within_limit(item: Item[Message]) -> None:
    """Note a message after a pause, and not before the file `LIMIT` allows one more note."""
    while len(NOTES.read_bytes().split()) >= int(LIMIT.read_text()):
        time.sleep(0.05)
    note_slowly(item)
