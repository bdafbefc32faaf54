"""`pairgate check` and `pairgate provision`: is everything there that the pair needs; make it."""

from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import attrs
import trio

from gateway.app.claiming import check_claims
from gateway.app.entities import make_entities
from gateway.app.failure import ExitCode, Failure
from gateway.app.findings import Finding, Findings, Grade
from gateway.app.namespaces import check_credentials, enter, is_own
from gateway.app.outside import Outside
from gateway.app.servers import why_not
from gateway.app.targets import find_running, through
from gateway.app.waking import expected_wake
from gateway.brokers.registry import cannot
from gateway.capabilities import Topology, Verifies
from gateway.config.file import Loaded
from gateway.config.options import Claims, Config, Namespace, Pairing
from gateway.domain import backlog
from gateway.domain.access import Right
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, EntityNotFound, NotAuthorized, NotSupported
from gateway.pairing.provision import doubts, provision
from gateway.ports import Broker

ASK_SECONDS: Final = 30.0


async def check(loaded: Loaded, outside: Outside, *, port_offset: int = 0) -> list[Finding]:
    """Connect to everything and tell what was found. Nothing is changed."""
    config, findings = loaded.config, Findings()
    findings.add(loaded.source, Grade.GOOD, "the configuration is good")
    for warning in loaded.warnings:
        findings.add(loaded.source, Grade.WARNING, warning)
    _check_endpoints(config, findings)
    wake = expected_wake(config)
    is_blind = not wake.announced and wake.look_every is None
    findings.add("listeners", Grade.WARNING if is_blind else Grade.GOOD, wake.text)
    if config.claims is not None:
        await _check_claims(config.claims, outside, findings)
    running = await find_running(config, port_offset)
    for namespace in config.namespaces.values():
        subject = f"namespace {namespace.name}"
        if _is_to_come(namespace):
            findings.add(subject, Grade.GOOD, "no store yet; `pairgate serve` makes it")
            continue
        try:
            async with AsyncExitStack() as stack:
                broker = await enter(stack, namespace, outside)
                await _check_namespace(broker, namespace, findings)
                if config.pairing is not None and config.pairing.secondary == namespace.name:
                    await _check_backlog(broker, namespace, config.pairing, findings)
        except Failure as failure:
            findings.add(subject, *_of_failure(failure, running))
    return findings.items


def _check_endpoints(config: Config, findings: Findings) -> None:
    for index, endpoint in enumerate(config.endpoints):
        why = why_not(endpoint.protocol)
        if why is not None:
            findings.add(f"endpoints[{index}]", Grade.BAD, why)


async def _check_claims(claims: Claims, outside: Outside, findings: Findings) -> None:
    if claims.store.startswith("folder:"):
        path = trio.Path(claims.store.removeprefix("folder:"))
        if not await path.exists():
            findings.add("claims", Grade.GOOD, "no store yet; `pairgate serve` makes it")
            return
    problem = await check_claims(claims, outside)
    if problem is None:
        findings.add("claims", Grade.GOOD, "bodies can be written, read and removed")
    else:
        findings.add("claims", Grade.BAD, problem)


def _is_to_come(namespace: Namespace) -> bool:
    """To open a store makes it, and a check changes nothing."""
    scheme, _, path = namespace.url.partition(":")
    return scheme == "embedded" and not Path(path).exists()


async def _check_namespace(broker: Broker, namespace: Namespace, findings: Findings) -> None:
    """
    Say whether it answers.

    Raises:
        Failure: it doesn't, or refuses the credentials.
    """
    subject = f"namespace {namespace.name}"
    doubt = await check_credentials(broker, namespace)
    try:
        with trio.fail_after(ASK_SECONDS):
            found = await _find_any(broker)
    except (NotAuthorized, NotSupported) as error:
        planned = namespace.plan.queues or namespace.plan.topics
        hint = "" if planned else "; with queues = [...] the right to send is checked"
        grade = Grade.GOOD if planned else Grade.WARNING
        findings.add(subject, grade, f"it answers, and lists no queues ({error}){hint}")
    except (BrokerError, trio.TooSlowError) as error:
        raise Failure(_reason(error)) from error
    else:
        text = "it answers" if found else "it answers, and has no queue or topic yet"
        findings.add(subject, Grade.GOOD, text)
    if missing := cannot(namespace.url):
        findings.add(subject, Grade.GOOD, f"of its kind, it has no {', no '.join(missing)}")
    if doubt is not None:
        findings.add(subject, Grade.WARNING, doubt)
    elif isinstance(broker, Verifies):
        await _verify_queues(broker, namespace, findings)


async def _verify_queues(broker: Verifies, namespace: Namespace, findings: Findings) -> None:
    """
    Look at the settings of the configured queues.

    Raises:
        Failure: there is no answer.
    """
    await trio.lowlevel.checkpoint()
    for queue in namespace.plan.queues:
        try:
            with trio.fail_after(ASK_SECONDS):
                problems = await broker.verify(queue.path, is_backlog=False)
        except EntityNotFound:
            problems = ["missing"]
        except (BrokerError, trio.TooSlowError) as error:
            raise Failure(_reason(error)) from error
        for problem in problems:
            findings.add(f"queue {queue.path}", Grade.WARNING, problem)


async def _find_any(broker: Broker) -> bool:
    """Whether there is a queue or a topic."""
    if await broker.list_queues(top=1):
        return True
    return isinstance(broker, Topology) and bool(await broker.list_topics(top=1))


async def _check_backlog(
    broker: Broker, namespace: Namespace, pairing: Pairing, findings: Findings
) -> None:
    await trio.lowlevel.checkpoint()
    wanted, there = pairing.options.backlog_queues, 0
    for index in range(wanted):
        queue = backlog.queue_name(pairing.options.label, index)
        usable, problems = await _look_at(broker, queue)
        there += usable
        for problem in problems:
            findings.add(f"backlog queue {queue}", Grade.WARNING, problem)
    made_by = "`pairgate serve` makes them" if is_own(namespace) else "run `pairgate provision`"
    hint = "" if there == wanted else f"; {made_by}"
    too_few = Grade.WARNING if there or is_own(namespace) else Grade.BAD
    findings.add(
        f"namespace {namespace.name}",
        Grade.GOOD if there == wanted else too_few,
        f"{there} of {wanted} backlog queues can be used{hint}",
    )


async def _look_at(broker: Broker, queue: EntityPath) -> tuple[bool, list[str]]:
    """Whether the queue can be sent to, and what is doubtful about it."""
    await trio.lowlevel.checkpoint()
    try:
        with trio.fail_after(ASK_SECONDS):
            problems = doubts(await broker.inspect(queue))
            if isinstance(broker, Verifies):
                problems += await broker.verify(queue, is_backlog=True)
            return True, problems
    except NotAuthorized:
        doubt = "its properties can't be read without the right Manage"
    except EntityNotFound:
        return False, ["missing"]
    except (BrokerError, trio.TooSlowError) as error:
        return False, [_reason(error)]
    try:
        with trio.fail_after(ASK_SECONDS):
            await broker.probe(queue)
    except (BrokerError, trio.TooSlowError) as error:
        return False, [_reason(error)]
    return True, [doubt]


def _of_failure(failure: Failure, running: str | None) -> tuple[Grade, str]:
    if failure.code is ExitCode.TEMPORARY and running is not None:
        text = f"the gateway at {running} has it open; what is in it can't be looked at from here"
        return Grade.GOOD, text
    return Grade.BAD, str(failure)


def _reason(error: BrokerError | trio.TooSlowError) -> str:
    return str(error) or f"no answer within {ASK_SECONDS:.0f} s"


@attrs.frozen(kw_only=True)
class Made:
    """Entities that were missing and are there now; `failure`: why the rest isn't."""

    namespace: str
    queues: tuple[str, ...]
    failure: Failure | None = None


def provision_code(made: Sequence[Made]) -> ExitCode:
    """How `provision` ends: an outage of some namespaces leaves the others done."""
    failures = [each.failure for each in made if each.failure is not None]
    if not failures:
        return ExitCode.DONE
    lasting = [each.code for each in failures if each.code is not ExitCode.TEMPORARY]
    if lasting:
        return lasting[0]
    is_part_done = len(failures) < len(made) or any(each.queues for each in made)
    return ExitCode.PARTLY if is_part_done else ExitCode.TEMPORARY


async def provision_all(loaded: Loaded, outside: Outside, *, port_offset: int = 0) -> list[Made]:
    """
    Make the configured queues of every namespace, and the backlog queues of the secondary. A
    namespace that fails stops no other one: its `Made` has the failure.
    """
    running = await find_running(loaded.config, port_offset)
    return [
        await _provision(loaded.config, namespace, outside, running)
        for namespace in loaded.config.namespaces.values()
    ]


async def _provision(
    config: Config, namespace: Namespace, outside: Outside, running: str | None
) -> Made:
    pairing, made = config.pairing, list[EntityPath]()
    async with AsyncExitStack() as stack:
        try:
            broker = await _enter_or_ask(stack, config, namespace, outside, running)
        except Failure as failure:
            return Made(namespace=namespace.name, queues=(), failure=failure)
        failed: Failure | None = None
        try:
            with trio.fail_after(ASK_SECONDS):
                made += await make_entities(broker, namespace.plan) if broker else []
                if broker and pairing is not None and pairing.secondary == namespace.name:
                    wanted = pairing.options.backlog_queues
                    made += await provision(broker, pairing.options.label, wanted)
        except (BrokerError, trio.TooSlowError) as error:
            failed = _not_made(namespace, error)
    names = tuple(queue.name for queue in made)
    return Made(namespace=namespace.name, queues=names, failure=failed)


async def _enter_or_ask(
    stack: AsyncExitStack,
    config: Config,
    namespace: Namespace,
    outside: Outside,
    running: str | None,
) -> Broker | None:
    """
    The namespace, or the gateway that has its store open.

    None for the secondary of that gateway: its endpoint leads to the primary, and it has made
    the secondary's backlog queues when it started.
    """
    await trio.lowlevel.checkpoint()
    try:
        return await enter(stack, namespace, outside)
    except Failure as failure:
        if failure.code is not ExitCode.TEMPORARY or running is None:
            raise
    if config.pairing is not None and config.pairing.primary != namespace.name:
        return None
    return await enter(stack, through(config, running, Right.MANAGE), outside)


def _not_made(namespace: Namespace, error: BrokerError | trio.TooSlowError) -> Failure:
    if isinstance(error, NotAuthorized):
        text = f"{error}; this needs a key with the right Manage"
        return Failure(f"namespace {namespace.name}: {text}", ExitCode.WRONG)
    temporary = isinstance(error, trio.TooSlowError) or error.counts_as_outage
    code = ExitCode.TEMPORARY if temporary else ExitCode.FAILED
    return Failure(f"namespace {namespace.name}: {_reason(error)}", code)
