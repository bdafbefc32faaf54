"""Makes a pair of two open namespaces, and the syphons that belong to it."""

import hashlib
import os
import secrets
import socket
from contextlib import suppress
from pathlib import Path
from typing import Final

import trio

from gateway.app.failure import Failure
from gateway.app.namespaces import Sides, refused
from gateway.app.outside import Outside
from gateway.config.options import Pairing
from gateway.domain import backlog
from gateway.domain.entity import EntityPath
from gateway.domain.envelope import Envelope, EnvelopeKey
from gateway.domain.errors import NotAuthorized
from gateway.domain.events import BacklogReady
from gateway.pairing.pair import Pair, PairParts, Spool, Surroundings
from gateway.pairing.provision import Backlog, usable_backlog
from gateway.pairing.syphon import Syphon
from gateway.ports import Broker
from gateway.wire.amqp.message import encode_sorted, encoded_size

KEY_FILE: Final = "envelope.key"
KEY_BYTES: Final = 32


def make_envelope(pairing: Pairing, label: str) -> Envelope:
    """
    The envelope of the pair; without configured keys, with one that is kept beside the state.

    Raises:
        Failure: the key can't be kept or read.
    """
    return Envelope(
        pair=label,
        origin=pairing.origin or socket.gethostname(),
        keys=pairing.envelope_keys or (_kept_key(pairing.state.with_name(KEY_FILE)),),
        encode=encode_sorted,
        accept_legacy=pairing.accept_legacy_backlog,
    )


async def find_backlog(secondary: Broker, pairing: Pairing, outside: Outside) -> Backlog:
    """
    Find the usable backlog queues and report how many there are.

    A secondary that doesn't answer is taken on trust, as starting in an outage must work.

    Raises:
        Failure: there is none, or the secondary refuses the credentials.
    """
    label, wanted = pairing.options.label, pairing.options.backlog_queues
    names = tuple(backlog.queue_name(label, index) for index in range(wanted))
    silent = ("the secondary is silent",)
    found = Backlog(queues=names, max_message_size=None, problems=silent, asked=False)
    try:
        with trio.move_on_after(pairing.options.attempt_timeout):
            found = await usable_backlog(secondary, label, wanted)
    except NotAuthorized as error:
        raise refused(pairing.secondary, error) from error
    reason = "; ".join(found.problems)
    outside.observer.report(BacklogReady(wanted=wanted, usable=len(found.queues), reason=reason))
    if not found.queues:
        raise Failure(
            f"namespace {pairing.secondary} has no usable backlog queue ({reason}):"
            " `pairgate provision` makes them"
        )
    return found


async def make_pair(pairing: Pairing, sides: Sides, outside: Outside) -> Pair:
    """
    Put the pair together; nothing of it runs yet.

    Raises:
        Failure: it can't work as configured.
    """
    found = await find_backlog(sides.secondary, pairing, outside)
    parts = PairParts(
        primary=sides.primary,
        secondary=sides.secondary,
        options=pairing.options,
        backlog=found,
        envelope=make_envelope(pairing, pairing.options.label),
        around=Surroundings(
            clock=outside.now,
            rng=outside.rng("pair"),
            new_id=outside.new_id,
            observer=outside.observer,
            measure=encoded_size,
        ),
        state=pairing.state,
        spool=Spool(broker=sides.spool, queue=spool_queue(pairing)) if sides.spool else None,
    )
    return parts.assemble()


def spool_queue(pairing: Pairing) -> EntityPath:
    """The spool is a backlog of one queue, so that a syphon drains it like any other."""
    return backlog.queue_name(pairing.options.label, 0)


def make_syphons(pairing: Pairing, sides: Sides, outside: Outside, pair: Pair) -> list[Syphon]:
    """The syphons that run inside the gateway: the spool's always, since nobody else sees it."""
    sources = [sides.secondary] if pairing.enable_syphon else []
    if sides.spool is not None:
        sources.append(sides.spool)
    return [
        Syphon(
            primary=sides.primary,
            source=source,
            label=pairing.options.label,
            options=pairing.syphon,
            envelope=make_envelope(pairing, pairing.options.label),
            clock=outside.now,
            rng=outside.rng(f"syphon {index}"),
            observer=outside.observer,
            standings=pair.standings,
        )
        for index, source in enumerate(sources)
    ]


def _kept_key(path: Path) -> EnvelopeKey:
    """
    The key in that file, made if it isn't there.

    Its id comes from it: to a gateway with another file it is unknown, not wrong.
    """
    try:
        if not path.exists():
            _keep(path, secrets.token_hex(KEY_BYTES))
        key = path.read_bytes()
    except OSError as error:
        raise Failure(f"{path} (envelope key): {error.strerror}") from error
    if len(key) < KEY_BYTES:
        raise Failure(f"{path} (envelope key) is damaged: bring it back, or set envelope_keys")
    return EnvelopeKey(id=f"kept-{hashlib.sha256(key).hexdigest()[:8]}", key=key)


def _keep(path: Path, text: str) -> None:
    """Of several processes that do this at once the first wins, and none sees half a key."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    own = path.with_name(f"{path.name}.{os.getpid()}")
    descriptor = os.open(own, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    with suppress(FileExistsError):
        os.link(own, path)
    own.unlink()
