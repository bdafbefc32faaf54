"""`pairgate provision`: creates the missing queues that the configuration names."""

from collections.abc import Collection, Sequence
from contextlib import AsyncExitStack
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
from gateway.pairing.provision import depends_on_primary, further_queues, provision
from gateway.pairing.syphon.destination import Destination
from gateway.ports import Broker

ASK_SECONDS: Final = 30.0


async def find_primary(config: Config, runtime: Runtime, running: str | None) -> Destination | None:
    """The primary's identity; None if no primary is configured or open."""
    pairing = config.pairing
    if pairing is None:
        return None
    namespace = config.namespaces[pairing.primary]
    if is_to_come(namespace):
        return None
    async with AsyncExitStack() as stack:
        try:
            primary = await enter_or_ask(stack, config, namespace, runtime, running)
        except Failure:  # reported with the namespace itself
            return None
        if primary is None:
            return None
        return await find_destination(config, pairing, primary, runtime)


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
    provisioning = _Provisioning(
        config, runtime, running=await find_running(config, port_offset), adopted=adopted
    )
    # The primary first: the backlog queues depend on it.
    first = None if config.pairing is None else config.pairing.primary
    in_turn = sorted(config.namespaces.values(), key=lambda each: each.name != first)
    made = {each.name: await provisioning.provision(each) for each in in_turn}
    return [made[name] for name in config.namespaces]


@attrs.define(eq=False)
class _Provisioning:
    """Opens each namespace once. What the primary has told is for the secondary, which follows."""

    config: Config
    runtime: Runtime
    running: str | None = attrs.field(kw_only=True)  # the gateway of this configuration
    adopted: Collection[str] = attrs.field(kw_only=True)
    _destination: Destination | None = attrs.field(default=None, init=False)
    _listed: Sequence[EntityInfo] = attrs.field(default=(), init=False)

    async def provision(self, namespace: Namespace) -> Made:
        made, failed = list[EntityPath](), None
        async with AsyncExitStack() as stack:
            try:
                broker = await enter_or_ask(
                    stack, self.config, namespace, self.runtime, self.running
                )
            except Failure as failure:
                return Made(namespace=namespace.name, queues=(), failure=failure)
            if broker is not None:
                failed = await self._make(namespace, broker, made)
        names = tuple(queue.name for queue in made)
        return Made(namespace=namespace.name, queues=names, failure=failed)

    async def _make(
        self, namespace: Namespace, broker: Broker, made: list[EntityPath]
    ) -> Failure | None:
        """Add what is created to `made`; return the reason why the rest isn't."""
        pairing = self.config.pairing
        if pairing is not None and pairing.primary == namespace.name:
            self._destination = await find_destination(
                self.config, pairing, broker, self.runtime, adopted=self.adopted
            )
            self._listed = _planned(namespace)
        try:
            with trio.fail_after(ASK_SECONDS):
                made += await make_entities(broker, namespace.plan)
                if pairing is not None:
                    await self._make_backlog(pairing, namespace, broker, made)
        except Failure as failure:
            return failure
        except (BrokerError, trio.TooSlowError) as error:
            return _not_made(namespace, error)
        return None

    async def _make_backlog(
        self, pairing: Pairing, namespace: Namespace, broker: Broker, made: list[EntityPath]
    ) -> None:
        """List the primary's queues, if some of the backlog depend on them; make the backlog."""
        options = pairing.options
        if pairing.primary == namespace.name and depends_on_primary(options):
            self._listed = [*self._listed, *(await list_known(broker))]
        if pairing.secondary != namespace.name:
            return
        await _refuse_foreign(self.config, pairing, broker, self._destination)
        made += await provision(
            broker,
            options.label,
            options.backlog_queues,
            backlog.properties(legacy=pairing.accept_legacy_backlog),
            further=further_queues(options, self._listed),
        )
        if self._destination is not None:
            await record_backlog_owner(pairing, broker, self._destination)


def _planned(namespace: Namespace) -> Sequence[EntityInfo]:
    return [
        EntityInfo(path=each.path, properties=each.properties) for each in namespace.plan.queues
    ]


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
