"""
Does something around each operation on a namespace: measures it, refuses it, announces it.

An `InterceptedBroker` describes each call of one to a list of small objects, the interceptors. A
feature that must see operations is one `Interceptor`; it doesn't repeat the port.

The order of the list counts. The first interceptor is the outermost: its `before` is called first,
and its `after` or `error` last. An interceptor gets the end of each call that passed its `before`,
and of no other.
"""

import enum
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Final, TypeVar

import attrs
import trio

from gateway.capabilities import Batches, TransactedWork
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError
from gateway.domain.message import Delivery, Settlement

T = TypeVar("T")


class CallKind(enum.Enum):
    """
    The methods that are intercepted. Those of `DeletesByVersion`, `Describes`, `Topology`,
    `Updates` and `Verifies` aren't: no send and no receive needs them.
    """

    SEND = enum.auto()  # one batch or several, in any of the ways to send
    COMMIT = enum.auto()  # a transaction
    SCHEDULE = enum.auto()
    CANCEL_SCHEDULED = enum.auto()
    PROBE = enum.auto()
    IDENTIFY = enum.auto()
    INSPECT = enum.auto()
    LIST_QUEUES = enum.auto()
    CREATE_QUEUE = enum.auto()
    DELETE_QUEUE = enum.auto()
    PEEK = enum.auto()
    DELETE_MESSAGES = enum.auto()
    CLEAR_QUEUE = enum.auto()
    LIST_SESSIONS = enum.auto()
    OPEN = enum.auto()  # the scope of a receiver is entered
    # The scope of a session's receiver is entered. Only interceptors of this kind are called for
    # the methods of that receiver.
    OPEN_SESSION = enum.auto()
    WAIT = enum.auto()  # `Receiver.receive` in peek-lock mode, which loses nothing if interrupted
    RECEIVE = enum.auto()  # any other receive
    RECEIVE_DEFERRED = enum.auto()
    SETTLE = enum.auto()  # one delivery or several
    RENEW = enum.auto()
    HIDE = enum.auto()
    RENEW_SESSION = enum.auto()
    GET_STATE = enum.auto()
    SET_STATE = enum.auto()

    # Hashed by identity, since a hash by name in Python code is slow and needed for each call.
    __hash__ = object.__hash__


RECEIVES: Final = frozenset((CallKind.WAIT, CallKind.RECEIVE))


@attrs.define(eq=False)
class Call:
    """A call of a method of a namespace or of its receiver."""

    kind: CallKind
    entity: EntityPath | None  # None: it concerns the whole namespace
    batches: Batches = ()  # of a send
    settlements: Sequence[tuple[Delivery, Settlement]] = ()
    work: Sequence[TransactedWork] = ()  # of a transaction
    began: float = attrs.field(factory=trio.current_time, init=False)
    passed: int = attrs.field(default=0, init=False)  # interceptors whose `before` let it begin

    def seconds(self) -> float:
        """Return the seconds since the call began."""
        return trio.current_time() - self.began


class Interceptor:
    """
    Does something around the calls of some kinds. A subclass overrides the methods that it needs.
    None of them waits, but `before` may return a wait. `after` and `error` never raise.
    """

    kinds: ClassVar[frozenset[CallKind]] = frozenset()

    def before(self, call: Call) -> Awaitable[None] | None:
        """
        Note that the call begins. Its operation is started once the returned wait is over; None:
        at once, without a checkpoint, so that concurrent sends keep their order.

        Raises (also from the wait):
            BrokerError: the operation isn't started, and the call fails with this error. Other
                calls go on.
        """

    def after(self, call: Call, result: Any) -> None:
        """
        Note that the call has returned `result`. Of `SEND` and `SETTLE` it is a sequence with the
        verdict of each batch or settlement: a `BrokerError`, or anything else for success.
        """

    def error(self, call: Call, error: BaseException) -> None:
        """
        Note that the call has ended with that error, and will raise it: a `BrokerError`, but never
        of `SEND` or `SETTLE`; or `trio.Cancelled`, after which the outcome of a call that changes
        something is unknown, as the port says.
        """


class WaitInterceptor(Interceptor):
    """An interceptor that may interrupt a wait for messages, and begin it again."""

    async def wait(self, call: Call, receive: Callable[[], Awaitable[T]]) -> T:
        """
        As `receive`, which is the operation of a `WAIT`; it begins after all `before`, and may be
        called again after a cancellation.
        """
        return await receive()


class SplittingInterceptor(Interceptor):
    """An interceptor that may have to see each batch or settlement of a call alone."""

    def splits(self, call: Call) -> bool:
        """
        True if each batch or settlement of this call becomes a call of its own, one after the
        other. Calls of other tasks may come between them.
        """
        return False


@attrs.frozen(eq=False)
class InterceptorChain:
    """Interceptors by the kinds of calls that they are for, in the order of the list."""

    interceptors: Sequence[Interceptor]
    _by_kind: Mapping[CallKind, tuple[Interceptor, ...]] = attrs.field(init=False)
    _waits: tuple[WaitInterceptor, ...] = attrs.field(init=False)
    _splitting: tuple[SplittingInterceptor, ...] = attrs.field(init=False)

    @_by_kind.default
    def _sort(self) -> Mapping[CallKind, tuple[Interceptor, ...]]:
        return {
            kind: tuple(each for each in self.interceptors if kind in each.kinds)
            for kind in CallKind
        }

    @_waits.default
    def _find_waits(self) -> tuple[WaitInterceptor, ...]:
        return tuple(
            each for each in reversed(self.interceptors) if isinstance(each, WaitInterceptor)
        )

    @_splitting.default
    def _find_splitting(self) -> tuple[SplittingInterceptor, ...]:
        return tuple(each for each in self.interceptors if isinstance(each, SplittingInterceptor))

    def of_sessions(self) -> "InterceptorChain":
        """The interceptors of a session's receiver."""
        return InterceptorChain(self._by_kind[CallKind.OPEN_SESSION])

    async def run(self, call: Call, operation: Callable[[], Awaitable[T]]) -> T:
        """
        Return the result of the operation, with the interceptors of the call's kind around it.

        Raises:
            BrokerError: of the operation or of a `before`.
        """
        try:
            result = await self._begin(call, operation)
        except BaseException as error:
            self._fail(call, error)
            raise
        self._run_after(call, result)
        return result

    async def run_each(
        self, call: Call, operation: Callable[[], Awaitable[Sequence[T | BrokerError]]]
    ) -> Sequence[T | BrokerError]:
        """
        As `run`, of a `SEND` or a `SETTLE`, and return the verdict of each batch or settlement. An
        error is the verdict of all of them.
        """
        try:
            verdicts = await self._begin(call, operation)
        except BrokerError as error:
            verdicts = [error] * (len(call.batches) or len(call.settlements))
        except BaseException as error:
            self._fail(call, error)
            raise
        self._run_after(call, verdicts)
        return verdicts

    def parts(self, call: Call) -> Sequence[Call]:
        """The calls that a `SEND` or a `SETTLE` is split into: most often itself alone."""
        if not any(each.splits(call) for each in self._splitting):
            return (call,)
        kind, entity = call.kind, call.entity
        sends = [Call(kind, entity, batches=(each,)) for each in call.batches]
        return sends or [Call(kind, entity, settlements=(each,)) for each in call.settlements]

    async def wait(self, call: Call, receive: Callable[[], Awaitable[T]]) -> T:
        """As `run`, of a `WAIT`."""
        for each in self._waits:
            receive = partial(each.wait, call, receive)
        return await self.run(call, receive)

    async def _begin(self, call: Call, operation: Callable[[], Awaitable[T]]) -> T:
        for each in self._by_kind[call.kind]:
            wait = each.before(call)
            if wait is not None:
                await wait
            call.passed += 1
        return await operation()

    def _run_after(self, call: Call, result: object) -> None:
        for each in reversed(self._by_kind[call.kind][: call.passed]):
            each.after(call, result)

    def _fail(self, call: Call, error: BaseException) -> None:
        for each in reversed(self._by_kind[call.kind][: call.passed]):
            each.error(call, error)
