"""`pairgate provision`: creates the missing queues that the configuration names."""

from collections.abc import Collection, Sequence
from contextlib import AsyncExitStack, suppress
from typing import Final

import attrs
import trio

from gateway.app.entities import make_entities
from gateway.app.failure import ExitCode, Failure
from gateway.app.identities import (
    check_adopted,
    find_destination,
    judge_backlog,
    record_backlog_owner,
)
from gateway.app.namespaces import is_to_come, reason_of, refused, rights_of
from gateway.app.operations.findings import Grade
from gateway.app.operations.targets import enter_or_ask, find_running
from gateway.app.runtime import Runtime
from gateway.config.file import Loaded
from gateway.config.options import Config, Namespace, Pairing
from gateway.domain import backlog
from gateway.domain.entity import EntityInfo, EntityPath
from gateway.domain.errors import BrokerError, LoginRefused, NotAuthorized
from gateway.domain.health.abilities import Ability, Rights, remedy
from gateway.pairing.entity_cache import list_known
from gateway.pairing.provision import further_queues, provision
from gateway.pairing.syphon.destination import Destination
from gateway.ports import Broker

ASK_SECONDS: Final = 30.0


async def find_primary(
    config: Config,
    runtime: Runtime,
    running: str | None,
    adopted: Collection[str] = (),
    *,
    may_make: bool = False,
) -> Destination | None:
    """The primary's identity; None if no primary is configured or open."""
    pairing = config.pairing
    if pairing is None:
        return None
    namespace = config.namespaces[pairing.primary]
    if is_to_come(namespace) and not may_make:
        return None
    async with AsyncExitStack() as stack:
        try:
            primary = await enter_or_ask(stack, config, namespace, runtime, running)
        except Failure:  # reported with the namespace itself
            return None
        if primary is None:
            return None
        return await find_destination(config, pairing, primary, runtime, adopted=adopted)


@attrs.frozen(kw_only=True)
class Made:
    """Entities that were missing and exist now; `failure` is the reason why others don't."""

    namespace: str
    queues: tuple[str, ...]
    failure: Failure | None = None


def provision_code(made: Sequence[Made]) -> ExitCode:
    """The exit code of `provision`: after an outage of some namespaces, the others are done."""
    failures = [each.failure for each in made if each.failure is not None]
    if not failures:
        return ExitCode.DONE
    lasting = [each.code for each in failures if each.code is not ExitCode.TEMPORARY]
    if lasting:
        return lasting[0]
    is_part_done = len(failures) < len(made) or any(each.queues for each in made)
    return ExitCode.PARTLY if is_part_done else ExitCode.TEMPORARY


async def provision_all(
    loaded: Loaded, runtime: Runtime, *, port_offset: int = 0, adopted: Collection[str] = ()
) -> list[Made]:
    """
    Create the configured queues of every namespace, and the backlog queues of the secondary. A
    namespace that fails doesn't stop the others: its `Made` has the failure.

    `adopted` are fingerprints of primaries that the primary replaces: their backlog becomes its
    own.

    Raises:
        Failure: one of `adopted` isn't a fingerprint.
    """
    check_adopted(adopted)
    config = loaded.config
    running = await find_running(config, port_offset)
    destination = await find_primary(config, runtime, running, adopted, may_make=True)
    listed = await _list_primary(config, runtime, running)
    return [
        await _provision(config, namespace, runtime, running, destination, listed)
        for namespace in config.namespaces.values()
    ]


async def _provision(
    config: Config,
    namespace: Namespace,
    runtime: Runtime,
    running: str | None,
    destination: Destination | None,
    listed: Sequence[EntityInfo],
) -> Made:
    pairing, made = config.pairing, list[EntityPath]()
    async with AsyncExitStack() as stack:
        try:
            broker = await enter_or_ask(stack, config, namespace, runtime, running)
        except Failure as failure:
            return Made(namespace=namespace.name, queues=(), failure=failure)
        failed: Failure | None = None
        try:
            with trio.fail_after(ASK_SECONDS):
                made += await make_entities(broker, namespace.plan) if broker else []
                if broker and pairing is not None and pairing.secondary == namespace.name:
                    await _refuse_foreign(config, pairing, broker, destination)
                    wanted = pairing.options.backlog_queues
                    properties = backlog.properties(legacy=pairing.accept_legacy_backlog)
                    made += await provision(
                        broker,
                        pairing.options.label,
                        wanted,
                        properties,
                        further=further_queues(pairing.options, listed),
                    )
                    if destination is not None:
                        await record_backlog_owner(pairing, broker, destination)
        except Failure as failure:
            failed = failure
        except (BrokerError, trio.TooSlowError) as error:
            failed = _not_made(namespace, error)
    names = tuple(queue.name for queue in made)
    return Made(namespace=namespace.name, queues=names, failure=failed)


async def _list_primary(
    config: Config, runtime: Runtime, running: str | None
) -> Sequence[EntityInfo]:
    """The primary's queues: those of the configuration, and those that it lists."""
    if config.pairing is None:
        return ()
    namespace = config.namespaces[config.pairing.primary]
    planned = [
        EntityInfo(path=each.path, properties=each.properties) for each in namespace.plan.queues
    ]
    with trio.move_on_after(ASK_SECONDS):  # around the connection, whose tasks have scopes too
        async with AsyncExitStack() as stack:
            with suppress(Failure, BrokerError):
                primary = await enter_or_ask(stack, config, namespace, runtime, running)
                return [*planned, *(await list_known(primary) if primary else ())]
    return planned


async def _refuse_foreign(
    config: Config, pairing: Pairing, secondary: Broker, destination: Destination | None
) -> None:
    """
    Check that the backlog isn't another pair's.

    Raises:
        Failure: it is.
    """
    if destination is None:
        return
    match await judge_backlog(config, pairing, secondary, destination):
        case (Grade.BAD, text):
            raise Failure(f"namespace {pairing.secondary}: {text}", ExitCode.WRONG)


_RIGHTS: Final = {
    Rights.SERVICE_BUS: "this needs a key with the right Manage",
    Rights.RABBITMQ: "the user's permissions configure, write and read in the vhost must match the"
    " queue's name and that of its dead letters",
    Rights.STORAGE: "check the account's name and key",
    Rights.SERVICE_BUS_ROLES: "this needs the role Azure Service Bus Data Owner",
    Rights.STORAGE_ROLES: "this needs the role Storage Queue Data Contributor",
}


def _not_made(namespace: Namespace, error: BrokerError | trio.TooSlowError) -> Failure:
    reason = reason_of(error, namespace, seconds=ASK_SECONDS)
    if isinstance(error, LoginRefused):
        return refused(namespace.name, error, rights_of(namespace))
    if isinstance(error, NotAuthorized):
        text = f"{reason}; {_RIGHTS[rights_of(namespace)]}"
        return Failure(f"namespace {namespace.name}: {text}", ExitCode.WRONG)
    temporary = isinstance(error, trio.TooSlowError) or error.counts_as_outage
    if isinstance(error, BrokerError) and temporary:
        reason = f"{reason}; {remedy(Ability.REACH, error)}"
    code = ExitCode.TEMPORARY if temporary else ExitCode.FAILED
    return Failure(f"namespace {namespace.name}: {reason}", code)
