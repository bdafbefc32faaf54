"""The parts of a process with `[move]`, whose classes no other process imports."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final
from uuid import uuid4

import attrs

from gateway.app.assembly.parts import Feature, Parts, ProcessPlan
from gateway.app.assembly.wrapper_rows import WrapperRow, Wrapping
from gateway.app.failure import ExitCode, Failure
from gateway.app.operations.control_calls import Executors
from gateway.config.options import Namespace
from gateway.config.places import keeps_order
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError
from gateway.extensions.move.options import MOVE as OPTIONS
from gateway.extensions.move.order import MOVE, MOVES, PLAN_MOVE
from gateway.frontends.admin.control import Executor
from gateway.ports import Broker, Service

if TYPE_CHECKING:
    pass


def make(plan: ProcessPlan) -> Feature | None:
    options = plan.config.of(OPTIONS)
    return None if options is None else _MoveFeature(plan.config.namespaces[options.to])


@attrs.frozen
class _MoveFeature(Feature):
    to: Namespace

    def executors(self, parts: Parts) -> Executors:
        from gateway.extensions.move.calls import MoveCalls
        from gateway.extensions.move.mover import EntityMover

        [mover] = [each for each in parts.for_wrappers if isinstance(each, EntityMover)]
        moving = MoveCalls(
            broker=mover.broker,
            mover=mover,
            to=self.to.name,
            loses_order=not keeps_order(self.to),
            keeps_order=_never if parts.pair is None else parts.pair.broker.keeps_order,
            clock=parts.plan.runtime.now,
            observer=parts.plan.runtime.observer,
        )
        return [
            Executor(MOVES, moving.state),
            Executor(PLAN_MOVE, moving.plan),
            Executor(MOVE, moving.execute),
        ]


def _never(_: EntityPath) -> bool:
    return False


async def _wrap(wrapping: Wrapping, home: Broker) -> tuple[Broker, Sequence[Service]]:
    """
    The primary with the new namespace beside it.

    Raises:
        Failure: the shared folder can't be read, so that nobody knows where an entity is.
    """
    options = wrapping.config.of(OPTIONS)
    if options is None:
        return home, ()
    from gateway.extensions.move.book import MoveBook
    from gateway.extensions.move.broker import MovedBroker
    from gateway.extensions.move.mover import EntityMover
    from gateway.extensions.move.numbers import MovedNumbers
    from gateway.listening.stores.folder import FolderValues

    runtime, store = wrapping.runtime, FolderValues(options.state)
    book = MoveBook(store=store, clock=runtime.now, observer=runtime.observer)
    try:
        await book.load()
    except (BrokerError, ValueError) as error:
        raise Failure(f"move.state: {error}", ExitCode.FAILED) from error
    broker = MovedBroker(
        sides=(home, wrapping.namespaces[options.to]),
        book=book,
        numbers=MovedNumbers(store=store),
        entities=options.entities,
        rng=runtime.rng("move"),
        clock=runtime.now,
    )
    if not wrapping.leads:
        return broker, [book]
    mover = EntityMover(
        broker=broker, process=uuid4().hex, observer=runtime.observer, clock=runtime.now
    )
    return broker, [book, mover]


MOVED: Final = WrapperRow("move", "gateway/extensions/move/broker.py", "[move]", _wrap)
"""The primary with the namespace that its entities move to."""
