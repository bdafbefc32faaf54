"""
Identities of a pair's namespaces: checks that they are two, and that the backlog is this pair's.
"""

from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import trio

from gateway.app.failure import ExitCode, Failure
from gateway.app.namespaces import is_own
from gateway.app.operations.findings import Grade
from gateway.app.runtime import Runtime
from gateway.capabilities import Identifies
from gateway.config.options import Config, Pairing
from gateway.config.places import addresses_of
from gateway.domain.errors import BrokerError, NotAuthorized, NotSupported
from gateway.domain.events.gateway import Doubtful
from gateway.domain.identity import FINGERPRINT, RABBITMQ, Identity
from gateway.offering import offered
from gateway.pairing.records.ownership import Owner, owners_of, record_owner
from gateway.pairing.state_file import StateFileError, parse
from gateway.pairing.syphon.destination import Destination
from gateway.ports import Broker

ASK_SECONDS: Final = 5.0

Verdict = tuple[Grade, str]


def check_adopted(adopted: Collection[str]) -> None:
    """
    Check that each of them is a fingerprint.

    Raises:
        Failure: one isn't.
    """
    for text in adopted:
        if not FINGERPRINT.fullmatch(text):
            raise Failure(
                f"--adopt: a fingerprint of 16 hexadecimal digits expected, found {text!r}",
                ExitCode.WRONG,
            )


async def find_destination(
    config: Config,
    pairing: Pairing,
    primary: Broker,
    runtime: Runtime,
    *,
    adopted: Collection[str] = (),
    name: str | None = None,
) -> Destination:
    """
    The primary as envelopes name it, and its identity, if it answers soon.

    `adopted` are fingerprints of primaries that it replaces. `name` is the namespace that an
    operator chose for the backlog: it accepts all messages. None: the primary.

    Raises:
        Failure: one of `adopted` isn't a fingerprint.
    """
    check_adopted(adopted)
    found = Destination(
        primary=primary,
        addresses=addresses_of(config.namespaces[name or pairing.primary]),
        adopted=frozenset(adopted),
        observer=runtime.observer,
        rng=runtime.rng("identity"),
        takes_all=name is not None,
    )
    if name in {None, pairing.primary}:
        found.restore(_remembered(pairing.state))
    with trio.move_on_after(ASK_SECONDS), suppress(BrokerError):
        await found.ask()
    return found


async def identity_of(broker: Broker) -> Identity | None:
    """The namespace's identity; None if it reports none, or doesn't answer soon."""
    identifies = offered(broker, Identifies)
    if identifies is not None:
        with trio.move_on_after(ASK_SECONDS), suppress(BrokerError):
            return await identifies.identity()
    return None


def likeness(
    config: Config, pairing: Pairing, one: Identity | None, other: Identity | None
) -> Verdict | None:
    """
    The finding that both are the same namespace, by their identities; None: nothing suggests it.
    """
    names = f"the namespaces {pairing.primary} and {pairing.secondary}"
    if one is None or one != other:
        return None
    spaces = [config.namespaces[name] for name in (pairing.primary, pairing.secondary)]
    first, second = (set(addresses_of(space)) for space in spaces)
    if one.is_unique or first & second:
        return Grade.BAD, f"{names} are one and the same ({one}); a pair needs two"
    hint = "; if they are two, rename one of them with `rabbitmqctl set_cluster_name`"
    return (
        Grade.WARNING,
        f"{names} both report the identity {one}{hint if one.kind == RABBITMQ else ''}",
    )


def ownership(
    config: Config, pairing: Pairing, owners: Sequence[Owner], destination: Destination
) -> Verdict | None:
    """The finding that the backlog belongs to another pair; None: nothing suggests it."""
    known = destination.accepted | {destination.formerly}
    foreign = [owner for owner in owners if owner.fingerprint not in known]
    if not foreign:
        return None
    owner, label = foreign[0], pairing.options.label
    text = (
        f"the backlog queues {label}/... of namespace {pairing.secondary} belong to the pair of"
        f" {owner}: give this pair another pairing.label; if {pairing.primary} has replaced that"
        f" primary for good, `pairgate provision --adopt {owner.fingerprint}` and then"
        f" `pairgate serve --adopt {owner.fingerprint}`"
    )
    # A store of this process can't belong to another pair, and a primary that doesn't answer may be
    # the primary in the notes.
    sure = destination.has_answered and not is_own(config.namespaces[pairing.secondary])
    return (Grade.BAD if sure else Grade.WARNING), text


async def judge_backlog(
    config: Config, pairing: Pairing, secondary: Broker, destination: Destination
) -> Verdict | None:
    """As `ownership`, by the notes that are stored; if the secondary is unavailable, None."""
    owners: list[Owner] = []
    with trio.move_on_after(ASK_SECONDS), suppress(BrokerError):
        owners = await owners_of(secondary, pairing.options.label)
    return ownership(config, pairing, owners, destination)


async def record_backlog_owner(
    pairing: Pairing, secondary: Broker, destination: Destination
) -> None:
    """
    Store the pair's identity with the backlog, if the primary has reported one and the credentials
    have the right to.

    Raises:
        BrokerError: the secondary doesn't answer.
    """
    if not destination.has_answered or not destination.fingerprint:
        return
    told = destination.identity
    is_told = told is not None and told.is_lasting
    name = str(told) if is_told else destination.addresses[0]
    owner = Owner(fingerprint=destination.fingerprint, name=name)
    with suppress(NotAuthorized, NotSupported):
        await record_owner(secondary, pairing.options.label, owner, instead_of=destination.accepted)


async def record_or_report_owner(
    config: Config,
    pairing: Pairing,
    secondary: Broker,
    destination: Destination,
    runtime: Runtime,
) -> None:
    """
    As `record_backlog_owner` for a backlog that isn't another pair's. If it seems to be another
    pair's, report that instead. The records stay as they are if the secondary doesn't answer.
    """
    verdict = await judge_backlog(config, pairing, secondary, destination)
    if verdict is not None:
        runtime.observer.report(Doubtful(text=verdict[1]))
        return
    with trio.move_on_after(ASK_SECONDS), suppress(BrokerError):
        await record_backlog_owner(pairing, secondary, destination)


async def refuse_confusion(
    config: Config,
    pairing: Pairing,
    secondary: Broker,
    destination: Destination,
    runtime: Runtime,
) -> None:
    """
    Check that the pair consists of two namespaces and that the backlog isn't another pair's; report
    doubts. An adopted backlog, and one in a store of this process, is marked as this pair's.

    Raises:
        Failure: primary and secondary are the same namespace, or the backlog certainly is another
            pair's.
    """
    one, other = destination.identity, await identity_of(secondary)
    verdicts = [
        likeness(config, pairing, one if destination.has_answered else None, other),
        await judge_backlog(config, pairing, secondary, destination),
    ]
    for grade, text in filter(None, verdicts):
        if grade is Grade.BAD:
            raise Failure(text, ExitCode.WRONG)
        runtime.observer.report(Doubtful(text=text))
    if destination.adopted or is_own(config.namespaces[pairing.secondary]):
        with trio.move_on_after(ASK_SECONDS), suppress(BrokerError):
            await record_backlog_owner(pairing, secondary, destination)


def about_primary(pairing: Pairing, destination: Destination) -> str:
    """The primary's identity, and advice for the case that the primary moves or is replaced."""
    told, name = destination.identity, pairing.primary
    if told is not None and told.is_lasting:
        who = f"it is {told}, with the fingerprint {destination.fingerprint}"
        moves = "it keeps this identity at another address"
    else:
        who = (
            "it reports no lasting identity and is identified by its address"
            f" {destination.addresses[0]}, with the fingerprint {destination.fingerprint}"
        )
        moves = "at another address it counts as another primary"
    return (
        f"{who}; {moves}; if another primary replaces {name} for good, `--adopt"
        f" {destination.fingerprint}` gives it the backlog"
    )


def _remembered(state: Path) -> Identity | None:
    """
    The primary's identity that an earlier process has stored; a damaged file is reported elsewhere.
    """
    try:
        return parse(state.read_bytes()).primary
    except (OSError, StateFileError):
        return None
