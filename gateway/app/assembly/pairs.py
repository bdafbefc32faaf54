"""Creates a pair of two open namespaces, and its syphons."""

import hashlib
import os
import secrets
import socket
from contextlib import suppress
from pathlib import Path
from typing import Final

import attrs
import trio

from gateway.app.assembly.late_setup import BacklogSetup
from gateway.app.assembly.records import RecordParts
from gateway.app.failure import ExitCode, Failure
from gateway.app.namespaces import Sides, refused
from gateway.app.runtime import Runtime
from gateway.app.spooling import SpoolGauge, SyphonOfSpool
from gateway.config.options import Config, Pairing
from gateway.domain import backlog
from gateway.domain.entity import EntityPath
from gateway.domain.envelope import Envelope, EnvelopeKey
from gateway.domain.errors import BrokerError, NotAuthorized
from gateway.domain.events.gateway import BacklogReady, Doubtful
from gateway.net.secret_files import check_secret_file
from gateway.pairing.additions import PairDependencies, PairPeers
from gateway.pairing.entity_cache import KnownEntities
from gateway.pairing.pair import Pair, PairParts, Spool
from gateway.pairing.provision import Backlog, backlog_paths, further_queues, usable_backlog
from gateway.pairing.syphon.destination import Destination
from gateway.pairing.syphon.syphon import Syphon
from gateway.ports import Broker, Observer
from gateway.telemetry.watch import CountingMoves
from gateway.wire.amqp.message import encode_sorted, encoded_size
from gateway.wire.pairgate.encryption import MessageEncryption

KEY_FILE: Final = "envelope.key"
KEY_BYTES: Final = 32


def make_envelope(
    pairing: Pairing, label: str, runtime: Runtime, *, makes_key: bool = True
) -> Envelope:
    """
    The pair's envelope; without configured keys, with a key that is stored next to the pair's
    state.

    Raises:
        Failure: the key can't be stored or read, or is missing and not to be created.
    """
    envelope = Envelope(
        pair=label,
        origin=pairing.origin or socket.gethostname(),
        keys=pairing.envelope_keys or (_kept_key(pairing.state.with_name(KEY_FILE), makes_key),),
        encode=encode_sorted,
        encryption=MessageEncryption(runtime.rng("envelope")),
        encrypts=pairing.encrypt,
        accept_legacy=pairing.accept_legacy_backlog,
    )
    runtime.envelopes.append(envelope)
    return envelope


def renew_envelopes(config: Config, runtime: Runtime) -> None:
    """
    Use the envelope keys of a reloaded configuration from now on, and its setting of `encrypt`.
    Without configured keys, the keys in use stay.
    """
    pairing = config.pairing
    if pairing is None:
        return
    for envelope in runtime.envelopes:
        envelope.renew(pairing.envelope_keys or envelope.keys, encrypts=pairing.encrypt)


def known_entities(config: Config, primary: Broker) -> KnownEntities:
    """The entities that an order may name, beside those that the processes have seen."""
    queues = () if config.pairing is None else backlog_paths(config.pairing.options)
    names = (*config.entity_names, *(queue.name for queue in queues))
    return KnownEntities(primary=primary, configured=names)


async def find_backlog(
    secondary: Broker, pairing: Pairing, runtime: Runtime, setup: BacklogSetup
) -> Backlog:
    """
    Find the usable backlog queues, create missing ones, and report their number.

    If the secondary doesn't answer, its backlog queues are assumed to exist: a start during an
    outage must work.

    Raises:
        Failure: no backlog queue is usable, or the secondary refuses the credentials.
    """
    label, wanted = pairing.options.label, pairing.options.backlog_queues
    names = tuple(backlog.queue_name(label, index) for index in range(wanted))
    silent = ("the secondary doesn't answer",)
    assumed = Backlog(queues=names, max_message_size=None, problems=silent, asked=False)
    found = assumed
    try:
        with trio.move_on_after(pairing.options.attempt_timeout):
            found = await usable_backlog(secondary, label, wanted)
            if found.asked and (len(found.queues) < wanted or further_queues(pairing.options)):
                found = assumed  # until the queues that the setup has created are known
                await setup.run()
                found = await usable_backlog(secondary, label, wanted)
    except NotAuthorized as error:
        rights = runtime.abilities[pairing.secondary].abilities.rights
        raise refused(pairing.secondary, error, rights) from error
    except BrokerError:
        pass  # the secondary failed in the meantime
    reason = "; ".join(found.problems)
    usable = len(found.queues)
    if found.asked:
        runtime.observer.report(BacklogReady(wanted=wanted, usable=usable, reason=reason))
    else:
        text = (
            f"the {wanted} backlog queues are assumed to exist until they can be checked: {reason}"
        )
        runtime.observer.report(Doubtful(text=text))
    if not found.queues:
        raise Failure(
            f"namespace {pairing.secondary} has no usable backlog queue ({reason}):"
            " `pairgate provision` creates them"
        )
    return found


@attrs.frozen(kw_only=True)
class PairInputs:
    """The parts of a process that its pair is made for."""

    sides: Sides
    destination: Destination
    setup: BacklogSetup
    gauge: SpoolGauge | None = None  # measures the spool, if there is one
    peers: PairPeers = attrs.field(factory=PairPeers)
    records: RecordParts | None = None  # None: the process doesn't know the pair's other processes


async def make_pair(pairing: Pairing, inputs: PairInputs, runtime: Runtime) -> Pair:
    """
    Create the pair; nothing of it runs yet.

    Raises:
        Failure: the pair can't work as configured.
    """
    sides, setup, gauge = inputs.sides, inputs.setup, inputs.gauge
    found = await find_backlog(sides.secondary, pairing, runtime, setup)
    parts = PairParts(
        primary=sides.primary,
        secondary=sides.secondary,
        options=pairing.options,
        backlog=found,
        setup=setup.run,
        envelope=make_envelope(pairing, pairing.options.label, runtime),
        destination=inputs.destination,
        dependencies=PairDependencies(
            clock=runtime.now,
            rng=runtime.rng("pair"),
            new_id=runtime.new_id,
            observer=runtime.observer if gauge is None else gauge,
            measure=encoded_size,
            returns=runtime.abilities[pairing.primary].returns,
        ),
        state=pairing.state,
        spool=Spool(broker=sides.spool, queue=spool_queue(pairing)) if sides.spool else None,
        peers=inputs.peers,
        book=None if inputs.records is None else inputs.records.book,
        reader=None if inputs.records is None else inputs.records.reader,
        model=runtime.observer.backlog,
    )
    return parts.assemble()


def spool_queue(pairing: Pairing) -> EntityPath:
    """
    The queue of the spool, which is a backlog with a single queue, so that a syphon drains it like
    any other.
    """
    return backlog.queue_name(pairing.options.label, 0)


def make_gauge(pairing: Pairing, sides: Sides, runtime: Runtime) -> SpoolGauge | None:
    """The gauge of the spool, if there is one."""
    if sides.spool is None or pairing.spool is None:
        return None
    return SpoolGauge(
        spool=sides.spool,
        queue=spool_queue(pairing),
        folder=Path(pairing.spool).parent,
        clock=runtime.now,
        observer=runtime.observer,
    )


def make_syphons(
    pairing: Pairing, sides: Sides, runtime: Runtime, pair: Pair, gauge: SpoolGauge | None = None
) -> list[Syphon]:
    """
    The syphons that run inside the gateway: always the spool's, since no other process has the
    spool open.
    """
    observers: list[tuple[Broker, Observer]] = []
    if pairing.enable_syphon:
        counting = CountingMoves(runtime.observer, runtime.now)
        observers.append((sides.secondary, counting))
    if sides.spool is not None:
        spool_observer = runtime.observer if gauge is None else SyphonOfSpool(gauge)
        observers.append((sides.spool, spool_observer))
    return [
        Syphon(
            primary=sides.primary,
            source=source,
            label=pairing.options.label,
            options=pairing.syphon,
            envelope=make_envelope(pairing, pairing.options.label, runtime),
            clock=runtime.now,
            rng=runtime.rng(f"syphon {index}"),
            observer=observer,
            states=pair.states,
            named=backlog_paths(pairing.options),
            destination=pair.destination,
            pauses=pair.pauses,
            reports_progress=source is not sides.spool,
            depth=pair.depth,  # of no use to the spool's, which reports no progress
        )
        for index, (source, observer) in enumerate(observers)
    ]


def _kept_key(path: Path, makes_key: bool) -> EnvelopeKey:
    """
    The key in that file, created if missing. The id is derived from the key, so that to a gateway
    with another file the key is unknown, not wrong.
    """
    try:
        if not path.exists() and not makes_key:
            text = f"{path} (envelope key) is missing; `pairgate serve` creates it"
            raise Failure(f"{text}, or set pairing.envelope_keys", ExitCode.WRONG)
        if not path.exists():
            _keep(path, secrets.token_hex(KEY_BYTES))
        check_secret_file(path)
        key = path.read_bytes()
    except OSError as error:
        raise Failure(f"{path} (envelope key): {error.strerror}") from error
    except ValueError as error:
        raise Failure(f"envelope key {error}", ExitCode.WRONG) from error
    if len(key) < KEY_BYTES:
        raise Failure(f"{path} (envelope key) is damaged: restore it, or set pairing.envelope_keys")
    return EnvelopeKey(id=f"kept-{hashlib.sha256(key).hexdigest()[:8]}", key=key)


def _keep(path: Path, text: str) -> None:
    """
    Write the file. If several processes write it at once, the first wins, and no process reads half
    a key.
    """
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
