"""
`pairgate check`: checks that everything the configuration names exists and is set up correctly.
"""

from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from datetime import timedelta
from typing import Final

import trio

from gateway.app.failure import ExitCode, Failure
from gateway.app.identities import about_primary, identity_of, judge_backlog, likeness
from gateway.app.namespaces import (
    check_credentials,
    check_options,
    enter,
    is_own,
    is_to_come,
    reason_of,
    refused,
    rights_of,
)
from gateway.app.operations.findings import ASK_SECONDS, CheckFinding, Findings, Grade
from gateway.app.operations.provisioning import find_primary
from gateway.app.operations.targets import find_running
from gateway.app.runtime import Runtime
from gateway.app.starting import check_endpoints, check_files, check_issuers
from gateway.app.waking import expected_wake
from gateway.capabilities import Topology, Verifies
from gateway.config.file import Loaded
from gateway.config.kinds import cannot
from gateway.config.options import Config, Namespace, Pairing
from gateway.config.places import authority_of
from gateway.domain import backlog
from gateway.domain.entity import EntityPath
from gateway.domain.errors import (
    BrokerError,
    CredentialRefused,
    EntityNotFound,
    LoginRefused,
    NotAuthorized,
    NotSupported,
    locate,
)
from gateway.domain.health.abilities import Ability, is_sure, remedy
from gateway.extensions.listing import parts
from gateway.offering import offered
from gateway.pairing.provision import backlog_queues, doubts
from gateway.pairing.records.place import place_of
from gateway.pairing.syphon.destination import Destination
from gateway.ports import Broker
from gateway.wire.pairgate.advice import wake_text

_MISSING: Final = "missing"
# Namespaces that hold the locks of a killed receiver until they expire. Elsewhere a lock ends with
# the process that has the store open, or with the connection.
_KEEPS_LOCKS: Final = ("servicebus", "storage-queue")


async def check(loaded: Loaded, runtime: Runtime, *, port_offset: int = 0) -> list[CheckFinding]:
    """Connect to everything and return the findings. Nothing is changed."""
    config, findings = loaded.config, Findings()
    _read(loaded, runtime, findings)
    for add in parts("findings"):
        await add(config, runtime, findings)
    running, is_served = await find_running(config, port_offset), False
    destination = await find_primary(config, runtime, running)
    for namespace in config.namespaces.values():
        subject = f"namespace {namespace.name}"
        if is_to_come(namespace):
            path = namespace.url.partition(":")[2]
            text = f"no store at {path} yet; `pairgate serve` creates it"
            findings.add(subject, Grade.WARNING, text)
            continue
        try:
            async with AsyncExitStack() as stack:
                broker = await enter(stack, namespace, runtime)
                await _check_namespace(broker, namespace, findings)
                if config.pairing is not None and config.pairing.secondary == namespace.name:
                    await _check_backlog(broker, namespace, config.pairing, findings)
                for add in parts("namespace_findings"):
                    await add(broker, namespace, config, findings)
                if destination is not None:
                    await _check_identity(broker, namespace, config, destination, findings)
        except Failure as failure:
            is_served |= failure.code is ExitCode.TEMPORARY and is_own(namespace)
            findings.add(subject, *_of_failure(failure, running, subject))
    await check_issuers(config, findings)
    check_files(config, findings)
    await check_endpoints(config, findings, port_offset=port_offset, is_served=is_served)
    return findings.items


async def try_namespace(namespace: Namespace, runtime: Runtime) -> list[CheckFinding]:
    """Connect to one namespace that isn't in use yet; return what `check` would find about it."""
    findings, subject = Findings(), f"namespace {namespace.name}"
    try:
        async with AsyncExitStack() as stack:
            broker = await enter(stack, namespace, runtime)
            await _check_namespace(broker, namespace, findings)
    except Failure as failure:
        findings.add(subject, *_of_failure(failure, None, subject))
    return findings.items


def _read(loaded: Loaded, runtime: Runtime, findings: Findings) -> None:
    """Add the findings of the file alone. What is wrong with options comes with their namespace."""
    config = loaded.config
    with suppress(Failure):
        for namespace in config.namespaces.values():
            check_options(namespace, runtime)
        findings.add(loaded.source, Grade.GOOD, "the configuration is valid")
    for warning in loaded.warnings:
        findings.add(loaded.source, Grade.WARNING, warning)
    wake = expected_wake(config)
    is_blind = not wake.announced and wake.poll_every is None
    if is_blind or config.listener != type(config.listener)():
        findings.add("listeners", Grade.WARNING if is_blind else Grade.GOOD, wake_text(wake))


async def _check_identity(
    broker: Broker,
    namespace: Namespace,
    config: Config,
    destination: Destination,
    findings: Findings,
) -> None:
    pairing = config.pairing
    if pairing is None:
        return
    subject = f"namespace {namespace.name}"
    if namespace.name == pairing.primary and destination.has_answered:
        findings.add(subject, Grade.GOOD, about_primary(pairing, destination))
    if namespace.name == pairing.secondary:
        told = destination.identity if destination.has_answered else None
        verdicts = [
            likeness(config, pairing, told, await identity_of(broker)),
            await judge_backlog(config, pairing, broker, destination),
        ]
        for grade, text in filter(None, verdicts):
            findings.add(subject, grade, text)
        if destination.formerly and not destination.has_answered:
            text = f"the backlog is for the primary with the fingerprint {destination.formerly}"
            findings.add(subject, Grade.GOOD, f"{text}, by the file {pairing.state}")


async def _check_namespace(broker: Broker, namespace: Namespace, findings: Findings) -> None:
    """
    Add the finding that the namespace answers. Raises:
        Failure: the namespace doesn't answer, or refuses the credentials.
    """
    subject = f"namespace {namespace.name}"
    await check_credentials(broker, namespace)
    planned = namespace.plan.queues or namespace.plan.topics
    try:
        with trio.fail_after(ASK_SECONDS):
            found = await _find_any(broker)
    except (LoginRefused, CredentialRefused) as error:
        raise _refused(error, namespace) from error
    except (NotAuthorized, NotSupported) as error:
        hint = "" if planned else "; with queues = [...] the right to send is checked"
        findings.add(subject, Grade.NOTE, f"its queues can't be listed ({error}){hint}")
    except (BrokerError, trio.TooSlowError) as error:
        raise _unanswered(error, namespace) from error
    else:
        text = "it answers" if found else "it answers, and has no queue or topic yet"
        findings.add(subject, Grade.GOOD, text)
    if missing := cannot(namespace.url):
        findings.add(subject, Grade.NOTE, f"this kind of namespace has no {', no '.join(missing)}")
    await _check_plan(broker, namespace, findings)


def _refused(error: NotAuthorized, namespace: Namespace) -> Failure:
    """The failure of a namespace that refuses the credentials, with the remedy."""
    locate(error, authority_of(namespace))
    return refused(namespace.name, error, rights_of(namespace))


def _unanswered(
    error: BrokerError | trio.TooSlowError, namespace: Namespace, entity: EntityPath | None = None
) -> Failure:
    """The failure of a namespace that doesn't answer, with the remedy."""
    reason = reason_of(error, namespace, entity, ASK_SECONDS)
    if isinstance(error, BrokerError) and is_sure(error):
        reason = f"{reason}; {remedy(Ability.REACH, error)}"
    return Failure(reason)


async def _check_plan(broker: Broker, namespace: Namespace, findings: Findings) -> None:
    """
    Add what is wrong with the configured queues and topics: all missing ones as one finding.

    Raises:
        Failure: the namespace doesn't answer.
    """
    verifies, missing = offered(broker, Verifies), dict[str, list[str]]()
    plan = namespace.plan
    queues = [("queue", each.path) for each in plan.queues]
    for kind, path in [*queues, *(("topic", each.path) for each in plan.topics)]:
        problems: Sequence[str] = ()
        try:
            with trio.fail_after(ASK_SECONDS):
                if verifies is not None and kind == "queue":
                    problems = await verifies.verify(path, is_backlog=False)
                else:
                    await broker.probe(path)
        except EntityNotFound:
            missing.setdefault(kind, []).append(str(path))
        except (BrokerError, trio.TooSlowError) as error:
            if is_sure(error):
                raise _unanswered(error, namespace, path) from error
            problems = [reason_of(error, namespace, path, ASK_SECONDS)]
        for problem in problems:
            findings.add(f"{kind} {path}", Grade.WARNING, problem)
    for kind, names in missing.items():
        one = len(names) == 1
        text = f"{kind if one else f'{kind}s'} {', '.join(names)} {'is' if one else 'are'} missing"
        cure = f"`pairgate provision` creates {'it' if one else 'them'}"
        findings.add(f"namespace {namespace.name}", Grade.WARNING, f"{text}; {cure}")


async def _find_any(broker: Broker) -> bool:
    """True if the namespace has a queue or a topic."""
    if await broker.list_queues(top=1):
        return True
    topology = offered(broker, Topology)
    return topology is not None and bool(await topology.list_topics(top=1))


async def _check_backlog(
    broker: Broker, namespace: Namespace, pairing: Pairing, findings: Findings
) -> None:
    there, locks, wanted = 0, list[timedelta](), backlog_queues(pairing.options)
    # By the problem's text without the queue's name.
    queues_by_problem: dict[str, list[EntityPath]] = {}
    texts: dict[str, str] = {}
    for queue in wanted:
        name = queue.path.name
        usable, problems = await _try_queue(broker, namespace, queue, locks)
        there += usable
        for problem in problems:
            queues_by_problem.setdefault(problem.replace(name, ""), []).append(queue.path)
            texts.setdefault(problem.replace(name, ""), problem)
    for alike, queues in queues_by_problem.items():
        problem = texts[alike]
        subject = f"backlog queue {queues[0]}"
        if len(queues) > 1:
            subject = f"{len(queues)} backlog queues, {queues[0]} to {queues[-1]}"
        findings.add(subject, Grade.WARNING, problem)
    made_by = "`pairgate serve` creates them" if is_own(namespace) else "run `pairgate provision`"
    hint = f"; {made_by}" if _MISSING in queues_by_problem else ""
    too_few = Grade.WARNING if there or is_own(namespace) else Grade.BAD
    findings.add(
        f"namespace {namespace.name}",
        Grade.GOOD if there == len(wanted) else too_few,
        f"{there} of {len(wanted)} backlog queues are usable{hint}",
    )
    await _check_records(broker, namespace, pairing, findings)
    _add_secrecy(namespace, pairing, findings)
    if namespace.url.startswith(_KEEPS_LOCKS) and not pairing.accept_legacy_backlog:
        _warn_of_long_locks(locks, namespace, findings)


async def _check_records(
    broker: Broker, namespace: Namespace, pairing: Pairing, findings: Findings
) -> None:
    """Add a finding if the queue is missing in which the pair's processes leave their records."""
    place = place_of(broker, pairing.options.label)
    if place is None or pairing.syphon.heartbeat_interval is None or is_own(namespace):
        return
    with trio.move_on_after(ASK_SECONDS), suppress(BrokerError):
        try:
            await place.read(0, 1)
        except EntityNotFound:
            kind = "stream" if place.is_stream else "queue"
            findings.add(
                f"namespace {namespace.name}",
                # Elsewhere the first process that may create it does so.
                Grade.WARNING if place.is_stream else Grade.NOTE,
                f"{kind} {place.queue} is missing, in which the pair's processes leave their"
                " records: until then they don't know each other, and an order holds where it was"
                " given; `pairgate provision` creates it",
            )


def _add_secrecy(namespace: Namespace, pairing: Pairing, findings: Findings) -> None:
    """Add a finding: whether the namespace's owner can read diverted messages."""
    key = f" with the key {pairing.envelope_keys[0].id!r}" if pairing.envelope_keys else ""
    if pairing.encrypt:
        text = f"diverted messages are signed and encrypted{key}"
    elif is_own(namespace):
        return
    else:
        text = (
            f"diverted messages are signed{key}, and can be read by each client that may"
            " receive from the namespace's queues; `encrypt = true` in [pairing] encrypts them"
        )
    findings.add(f"namespace {namespace.name}", Grade.GOOD, text)


def _warn_of_long_locks(
    locks: Sequence[timedelta], namespace: Namespace, findings: Findings
) -> None:
    """Warn about locks longer than new backlog queues have."""
    longer = [lock for lock in locks if lock > backlog.LOCK]
    if longer:
        findings.add(
            f"namespace {namespace.name}",
            Grade.GOOD,
            f"{len(longer)} backlog queues lock messages for up to {max(longer).seconds} s:"
            f" messages that a killed syphon had locked wait that long; `pairgate provision`"
            f" creates queues with {backlog.LOCK.seconds} s",
        )


async def _try_queue(
    broker: Broker, namespace: Namespace, queue: backlog.BacklogQueue, locks: list[timedelta]
) -> tuple[bool, list[str]]:
    """
    Return whether the queue accepts sends, and the doubts about it; add its lock duration to the
    list.

    Raises:
        Failure: the namespace doesn't answer, or refuses the login.
    """
    try:
        with trio.fail_after(ASK_SECONDS):
            info = await broker.inspect(queue.path)
            locks.append(info.properties.lock_duration)
            problems = doubts(info, queue)
            if (verifies := offered(broker, Verifies)) is not None:
                problems += await verifies.verify(queue.path, is_backlog=True)
            return True, problems
    except LoginRefused as error:
        raise _refused(error, namespace) from error
    except NotAuthorized as error:
        advice = remedy(Ability.MANAGE, error, rights_of(namespace))
        reason = reason_of(error, namespace, queue.path)
        doubt = f"its properties can't be read: {reason}; {advice}"
    except EntityNotFound:
        return False, [_MISSING]
    except (BrokerError, trio.TooSlowError) as error:
        return False, [_reason(error, namespace, queue.path)]
    try:
        with trio.fail_after(ASK_SECONDS):
            await broker.probe(queue.path)
    except (BrokerError, trio.TooSlowError) as error:
        return False, [_reason(error, namespace, queue.path)]
    return True, [doubt]


def _reason(error: BrokerError | trio.TooSlowError, namespace: Namespace, queue: EntityPath) -> str:
    """
    The reason why that queue can't be used.

    Raises:
        Failure: the namespace doesn't answer, or refuses the login: so it is with all queues.
    """
    if isinstance(error, LoginRefused):
        raise _refused(error, namespace) from error
    if is_sure(error):
        raise _unanswered(error, namespace) from error
    return reason_of(error, namespace, queue, ASK_SECONDS)


def _of_failure(failure: Failure, running: str | None, subject: str) -> tuple[Grade, str]:
    if failure.code is ExitCode.TEMPORARY and running is not None:
        text = f"the gateway at {running} has it open; its content can't be checked from here"
        return Grade.GOOD, text
    text = str(failure).removeprefix(f"{subject}: ").removeprefix(f"{subject} ")
    return Grade.BAD, text
