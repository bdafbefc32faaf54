"""`pairgate redrive`: moves dead letters back to the backlog after their cause was fixed."""

import math
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import datetime
from functools import partial
from typing import Final, Protocol

import attrs
import trio

from gateway.app.assembly.opening import spool_namespace
from gateway.app.failure import ExitCode, Failure
from gateway.app.namespaces import enter, is_own
from gateway.app.operations.admin_choice import AdminChoice
from gateway.app.operations.admin_endpoint import AdminEndpoint, find_admin
from gateway.app.operations.asking import give_to
from gateway.app.process import SignalWatch
from gateway.app.runtime import Runtime
from gateway.config.options import Config, Namespace, Pairing
from gateway.deadlines import answered_within
from gateway.domain.errors import BrokerError, InvalidRequest, MessageError
from gateway.extensions.redrive.feature import make_redrive
from gateway.extensions.redrive.moving import Add
from gateway.extensions.redrive.order import (
    MOST_REDRIVEN,
    REDRIVE,
    Redriven,
    RedriveOrder,
    Selection,
    Survey,
)
from gateway.extensions.redrive.redrive import QueueRedrive

SLICE_SECONDS: Final = 1.0  # of the messages that a running gateway moves for one request
SLICE_LIMIT: Final = 60.0  # seconds, for its response


@attrs.frozen(kw_only=True)
class RedriveOptions:
    """The command's options."""

    order: RedriveOrder  # with the selection, and the queue if it isn't the backlog
    executes: bool = False
    rate: float | None = None  # messages/s
    label: str | None = None  # None: the pair's own label
    admin: AdminChoice = attrs.field(factory=AdminChoice)


@attrs.frozen(kw_only=True)
class RedriveOutcome:
    """The dead letters that were found, and the result of the move; None if none was wanted."""

    through: str  # the namespace, or the gateway that has it open
    survey: Survey
    redriven: Redriven | None
    target: str = ""  # of the moved messages; empty: the backlog

    @property
    def code(self) -> ExitCode:
        redriven = self.redriven or Redriven()
        problems = self.survey.problems + redriven.problems
        if not problems and not redriven.left:
            return ExitCode.DONE
        if redriven.moved or (self.redriven is None and self.survey.messages):
            return ExitCode.PARTLY
        is_outage = self.survey.is_outage or redriven.is_outage
        return ExitCode.TEMPORARY if is_outage else ExitCode.FAILED


class Driver(Protocol):
    """`Redrive`, in this process or in a running gateway."""

    async def survey(self, selection: Selection, peek: int = 0, preview: int = 0) -> Survey: ...

    async def run(
        self,
        selection: Selection,
        *,
        add: Add,
        rate: float | None = None,
        reason: str = "",
    ) -> Redriven: ...


async def redrive(
    config: Config,
    runtime: Runtime,
    wish: RedriveOptions,
    *,
    begin: Callable[[Survey], None],
    moved: Callable[[int], None],
) -> RedriveOutcome:
    """
    Count the dead letters, and move the selected ones if the wish says so; `begin` is called
    between the two. SIGINT and SIGTERM stop between two messages.

    A gateway's own store is redriven by the gateway if it runs, else opened here.

    Raises:
        Failure: there is no such namespace, or no pair, or the namespace can't be opened or doesn't
            answer.
    """
    async with AsyncExitStack() as stack:
        driver, through = await _driver(stack, config, runtime, wish)
        try:
            order = wish.order
            survey = await driver.survey(order.selected, order.peek, order.preview)
            redriven = None
            if wish.executes and may_move(survey):
                begin(survey)
                redriven = await _run(driver, wish, moved)
        except (BrokerError, MessageError) as error:
            is_outage = isinstance(error, BrokerError) and error.counts_as_outage
            code = ExitCode.TEMPORARY if is_outage else ExitCode.FAILED
            raise Failure(f"{through}: {error}", code) from error
    target = wish.order.target or wish.order.queue
    return RedriveOutcome(through=through, survey=survey, redriven=redriven, target=target)


async def _run(driver: Driver, wish: RedriveOptions, moved: Callable[[int], None]) -> Redriven:
    done = Redriven()

    def add(part: Redriven) -> None:
        nonlocal done
        done += part
        moved(part.moved)

    redriven: Redriven | None = None
    async with trio.open_nursery() as nursery:

        def stop(_: str) -> None:
            nursery.cancel_scope.cancel()

        await nursery.start(SignalWatch(stop).run)
        order = wish.order
        redriven = await driver.run(order.selected, add=add, rate=wish.rate, reason=order.reason)
        nursery.cancel_scope.cancel()
    return redriven or done + Redriven(problems=("it was stopped",))


def may_move(survey: Survey) -> bool:
    """True if there may be something to move: a look doesn't wait for what another one locks."""
    unreadable = any(group.problem for group in survey.groups)
    return bool(survey.moves or unreadable or survey.problems)


def _source(config: Config, wish: RedriveOptions) -> Namespace:
    if wish.order.queue:
        name = wish.order.namespace or config.home_name
        if name not in config.namespaces:
            raise Failure(f"--namespace: the configuration has no {name!r}", ExitCode.WRONG)
        return config.namespaces[name]
    pairing = _pairing(config)
    if not wish.order.spool:
        return config.namespaces[pairing.secondary]
    if pairing.spool is None:
        raise Failure("this configuration has no pairing.spool", ExitCode.WRONG)
    return spool_namespace(pairing.spool)


def _pairing(config: Config) -> Pairing:
    if config.pairing is None:
        text = "the backlog needs [pairing] in the configuration; name a QUEUE for its dead letters"
        raise Failure(text, ExitCode.WRONG)
    return config.pairing


async def _driver(
    stack: AsyncExitStack, config: Config, runtime: Runtime, wish: RedriveOptions
) -> tuple[Driver, str]:
    """The driver of the redrive, and its name for people."""
    namespace = _source(config, wish)
    if is_own(namespace) or wish.admin.url is not None:
        endpoint = await find_admin(config, wish.admin)
        if endpoint is not None:
            ask = partial(_ask, config, endpoint, wish)
            return RedriveInSlices(ask, wish, runtime.now()), f"the gateway at {endpoint}"
        if namespace.url.startswith("memory:"):
            raise Failure(
                f"namespace {namespace.name} is in the memory of a gateway, and none answers at an"
                " `admin` endpoint of this configuration",
                ExitCode.TEMPORARY,
            )
    try:
        source = await enter(stack, namespace, runtime)
    except Failure as failure:
        if not is_own(namespace) or failure.code is not ExitCode.TEMPORARY:
            raise
        hint = "a running gateway needs an `admin` endpoint for this, which is missing"
        raise Failure(f"{failure}; {hint}", failure.code) from failure
    name = f"namespace {namespace.name}"
    if wish.order.queue:
        return QueueRedrive.of(wish.order, source, runtime), name
    return make_redrive(_pairing(config), source, runtime, wish.label), name


async def _ask(
    config: Config, endpoint: AdminEndpoint, wish: RedriveOptions, order: RedriveOrder
) -> Survey | Redriven:
    own = None if config.pairing is None else config.pairing.options.label
    if wish.label not in {None, own}:
        raise InvalidRequest(
            f"the gateway at {endpoint} redrives only the backlog of its own label"
        )
    with answered_within(REDRIVE.patience, "from the gateway"):
        return await give_to(endpoint, REDRIVE, order)


@attrs.define(eq=False)
class RedriveInSlices:
    """A `Driver` that calls the gateway which has the store open."""

    ask: Callable[[RedriveOrder], Awaitable[Survey | Redriven]]
    wish: RedriveOptions
    began: datetime
    _counted: Survey = attrs.field(factory=Survey, init=False)

    async def survey(self, selection: Selection, peek: int = 0, preview: int = 0) -> Survey:
        order = attrs.evolve(self.wish.order, executes=False, peek=peek, preview=preview)
        found = await self.ask(order)
        assert isinstance(found, Survey), "the order only counts"
        self._counted = found
        return found

    async def run(
        self,
        selection: Selection,
        *,
        add: Add,
        rate: float | None = None,
        reason: str = "",
    ) -> Redriven:
        """
        Move in slices, so that the redrive can be stopped between two of them: no more than were
        counted, unless some couldn't be counted. A message that is dead-lettered again entered the
        queue after the start, and isn't moved again where dates are known.
        """
        most = MOST_REDRIVEN
        if rate is not None:
            most = max(1, min(most, int(rate * SLICE_SECONDS)))
        given = self.wish.order.selection
        if all(group.oldest is not None for group in self._counted.groups):
            before = self.began if given.before is None else min(self.began, given.before)
            given = attrs.evolve(given, before=before)
        total = math.inf if self._counted.problems else self._counted.moves
        order = attrs.evolve(
            self.wish.order,
            selection=given,
            executes=True,
            rate=rate,
            peek=0,
            preview=0,
            reason=reason,
        )
        done = Redriven()
        while True:
            limit = max(1, int(min(most, total - done.moved)))
            # If stopped, wait for the slice in progress, whose messages count.
            with answered_within(SLICE_LIMIT, "from the gateway", shield=True):
                part = await self.ask(attrs.evolve(order, most=limit))
                assert isinstance(part, Redriven), "the order executes"
                add(attrs.evolve(part, left=0))  # which the next slice counts again
            await trio.lowlevel.checkpoint()  # here a cancellation ends it
            # Each slice counts only the dead letters that the slices before have left.
            done = attrs.evolve(done + part, left=part.left)
            if part.moved < limit or done.moved >= total:
                return done
