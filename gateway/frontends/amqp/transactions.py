"""
The transactions of one connection (AMQP 1.0, part 4).

A transaction collects the sends, schedules, settlements and states of sessions that its client asks
for, which get provisional outcomes. The namespace does all of them in one step when the client
commits the transaction. Of one that is rolled back it learns nothing but the sequence numbers that
its schedules have reserved.

    declared ──▶ open ──▶ discharged with fail, timed out, coordinator's link ended: nothing is done
                   └────▶ discharged: all of it is done, or nothing (`coordinator.py`)

A request to `$management` joins the transaction at its arrival, although it is answered later: the
commit waits for the answer.

A transaction of which a part was refused can only be rolled back: a client that doesn't wait for
the outcomes would otherwise commit the rest.

What waits for a commit takes memory: more than the bytes of its messages and settlements.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Final
from uuid import UUID

import attrs
import trio

from gateway.capabilities import (
    TransactedCancellation,
    TransactedSend,
    TransactedSettlement,
    TransactedState,
    TransactedWork,
)
from gateway.domain.bounded import Bounded
from gateway.domain.entity import EntityPath
from gateway.domain.errors import (
    BrokerError,
    InvalidRequest,
    QuotaExceeded,
    TransactionRolledBack,
    TransactionTimeout,
    TransactionUnknown,
)
from gateway.domain.message import (
    Complete,
    Delivery,
    Described,
    Message,
    SequenceBody,
    Settlement,
    Typed,
    Value,
    ValueBody,
)
from gateway.frontends.amqp.pending import Pending
from gateway.frontends.options import AmqpOptions
from gateway.net.turns import Waiters
from gateway.wire.amqp.events import LinkId
from gateway.wire.amqp.message import encoded_size
from gateway.wire.amqp.servicebus.settlements import size_of

LEAST_SIZE: Final = 256  # bytes that a message or a settlement takes
_OF_VALUE: Final = 64  # bytes that a value in a list or a map takes: an empty list is one byte
_OF_SECTION: Final = 256  # bytes of the objects that a section becomes


def memory_of_messages(messages: Iterable[Message], size: int) -> int:
    """The memory of messages that have come in one transfer of `size` bytes, about, in bytes."""
    sections = values = 0
    for each in messages:
        sections += len(each.encoded)
        values += sum(map(_values_in, (each.properties, each.annotations, each.footer)))
        if isinstance(each.body, ValueBody):
            values += _values_in(each.body.value)
        elif isinstance(each.body, SequenceBody):
            values += _values_in(each.body.sequences)
    return max(size, LEAST_SIZE) + _OF_SECTION * sections + _OF_VALUE * values


def memory_of_settlement(settlement: Settlement) -> int:
    """
    The memory of a settlement, about, in bytes.

    Raises:
        InvalidRequest: as `size_of`.
    """
    size = max(size_of(settlement), LEAST_SIZE)
    if isinstance(settlement, Complete):
        return size
    return size + _OF_VALUE * _values_in(settlement.properties)


def _values_in(value: Value) -> int:
    """The number of values in a list, a map, an array or a described value, at every depth."""
    if isinstance(value, Described):
        return 2 + _values_in(value.descriptor) + _values_in(value.value)
    if isinstance(value, Typed):
        return _values_in(value.value)
    if isinstance(value, Mapping):
        return 2 * len(value) + sum(map(_values_in, value.values()))
    if isinstance(value, list | tuple):
        return len(value) + sum(map(_values_in, value))
    return 0


_MOST_REMEMBERED: Final = 100  # transactions that have timed out


@attrs.frozen(kw_only=True, eq=False)
class Enlisted:
    """A delivery that is settled when its transaction is committed."""

    lock_token: str
    work: TransactedSettlement
    settled: Callable[[], None]  # called once the delivery is settled in the namespace
    # Called after a rollback, if the client can't settle the delivery in another way.
    undone: Callable[[], None] | None = None
    # The scope of the commit, if that makes the message available again.
    going_back: Callable[[], AbstractContextManager[None]] = nullcontext


@attrs.define(eq=False, kw_only=True)
class Transaction:
    """A transaction that is open, or about to be committed."""

    id: bytes
    link: LinkId  # the coordinator's, on which it was declared
    work: list[TransactedWork] = attrs.field(factory=list)
    enlisted: list[Enlisted] = attrs.field(factory=list)
    count: int = 0  # messages, cancellations, settlements and states
    size: int = 0  # bytes of memory
    # Why it can only be rolled back. A text: an error holds the frames that raised it, and so the
    # messages that were refused.
    failure: str = ""
    requests: int = 0  # to $management that have joined and aren't answered yet
    fewer: Waiters = attrs.field(factory=Waiters)  # woken when a request is answered
    timer: trio.CancelScope = attrs.field(factory=trio.CancelScope)


@attrs.define(eq=False)
class Transactions:
    """The open transactions of a connection, and their limits."""

    _options: AmqpOptions
    _new_id: Callable[[], UUID]
    _nursery: trio.Nursery
    _pending: Pending  # counts the memory of the transactions for their client
    _open: dict[bytes, Transaction] = attrs.field(factory=dict, init=False)
    # Transactions that are discharged and not released: their requests are answered, then they are
    # committed.
    _discharged: dict[bytes, Transaction] = attrs.field(factory=dict, init=False)
    _timed_out: Bounded[bytes, None] = attrs.field(
        factory=lambda: Bounded(_MOST_REMEMBERED), init=False
    )
    _size: int = attrs.field(default=0, init=False)  # bytes of memory
    _enlisted: set[str] = attrs.field(factory=set, init=False)  # lock tokens

    def declare(self, link: LinkId) -> Transaction:
        """
        Begin a transaction, on that coordinator's link.

        Raises:
            QuotaExceeded: too many are open.
        """
        most = self._options.max_transactions
        if len(self._open) >= most:
            raise QuotaExceeded(f"this connection has {most} open transactions: discharge some")
        made = Transaction(id=self._new_id().bytes, link=link)
        self._open[made.id] = made
        return made

    def find(self, txn_id: bytes) -> Transaction:
        """
        Return an open transaction.

        Raises:
            TransactionTimeout: it has timed out.
            TransactionUnknown: no transaction has that id.
        """
        found = self._open.get(txn_id)
        if found is not None:
            return found
        if txn_id in self._timed_out:
            seconds = self._options.transaction_timeout
            raise TransactionTimeout(
                f"the transaction wasn't discharged within {seconds:g} s, and was rolled back"
            )
        raise TransactionUnknown("no such transaction is open on this connection")

    def add_send(
        self, txn_id: bytes, entity: EntityPath, messages: Sequence[Message], size: int
    ) -> None:
        """
        Add the messages of a transfer, of `size` bytes, to be sent when the transaction is
        committed.

        Raises:
            QuotaExceeded: a limit is exceeded; the transaction can only be rolled back.
            TransactionRolledBack: there is no such transaction, or it can only be rolled back.
        """
        work, size = TransactedSend(entity, messages), memory_of_messages(messages, size)
        self._add(self.find(txn_id), work, len(messages), size)

    def add_settlement(self, to: Transaction, enlisted: Enlisted) -> None:
        """
        Add a settlement, which is done when the transaction is committed.

        Raises:
            InvalidRequest: the delivery is in a transaction already; this one can only be rolled
                back. Or AMQP can't express a property.
            QuotaExceeded: as `add_send`.
            TransactionRolledBack: the transaction has ended, or can only be rolled back.
        """
        self.find_joined(to.id)
        if enlisted.lock_token in self._enlisted:
            raise self.fail(to, InvalidRequest("the delivery is in a transaction already"))
        self._add(to, enlisted.work, 1, memory_of_settlement(enlisted.work.settlement))
        to.enlisted.append(enlisted)
        self._enlisted.add(enlisted.lock_token)

    def add_schedule(self, to: Transaction, work: TransactedSend) -> None:
        """
        Add scheduled messages, which are sent when the transaction is committed.

        Raises:
            QuotaExceeded, TransactionRolledBack: as `add_settlement`.
        """
        self.find_joined(to.id)
        size = memory_of_messages(work.messages, sum(map(encoded_size, work.messages)))
        self._add(to, work, len(work.messages), size)

    def add_cancellation(self, to: Transaction, work: TransactedCancellation) -> None:
        """
        Add the cancellation of scheduled messages, each of which counts as a message.

        Raises:
            QuotaExceeded, TransactionRolledBack: as `add_settlement`.
        """
        self.find_joined(to.id)
        count = len(work.sequence_numbers)
        self._add(to, work, count, max(_OF_VALUE * count, LEAST_SIZE))

    def holds(self, delivery: Delivery | None) -> bool:
        """True if a transaction that isn't over settles the delivery."""
        return delivery is not None and delivery.lock_token in self._enlisted

    def add_state(self, to: Transaction, work: TransactedState) -> None:
        """
        Add the state of a session, which is set when the transaction is committed.

        Raises:
            QuotaExceeded, TransactionRolledBack: as `add_settlement`.
        """
        self.find_joined(to.id)
        self._add(to, work, 1, max(len(work.state or b""), LEAST_SIZE))

    def join(self, txn_id: bytes) -> Transaction:
        """
        Count a request that is part of a transaction; the caller calls `leave` once it is answered.

        Raises:
            TransactionTimeout, TransactionUnknown: as `find`.
        """
        found = self.find(txn_id)
        found.requests += 1
        return found

    @staticmethod
    def leave(transaction: Transaction) -> None:
        """Note that a request that has joined is answered."""
        transaction.requests -= 1
        transaction.fewer.wake()

    def find_joined(self, txn_id: bytes) -> Transaction:
        """
        Return the transaction that a request has joined: it may be discharged meanwhile.

        Raises:
            TransactionTimeout, TransactionUnknown: as `find`; it was rolled back meanwhile.
        """
        return self._discharged.get(txn_id) or self.find(txn_id)

    async def wait_for_requests(self, transaction: Transaction) -> None:
        """
        Return once all requests that have joined are answered. If they aren't answered within the
        time limit of a transaction, this transaction can only be rolled back.
        """
        seconds = self._options.transaction_timeout
        with trio.move_on_after(seconds):
            while transaction.requests:
                await transaction.fewer.wait()
        if transaction.requests:
            text = f"a request of the transaction wasn't answered within {seconds:g} s"
            self.fail(transaction, TransactionTimeout(text))

    def fail_if_open(self, txn_id: bytes, error: BrokerError) -> None:
        """Note that a part of a transaction was refused: it can only be rolled back."""
        found = self._open.get(txn_id)
        if found is not None:
            self.fail(found, error)

    @staticmethod
    def fail(transaction: Transaction, error: BrokerError) -> BrokerError:
        """Note that a part of the transaction was refused; return the error."""
        transaction.failure = transaction.failure or str(error) or type(error).__name__
        transaction.work.clear()
        return error

    def discharge(self, txn_id: bytes, link: LinkId) -> Transaction:
        """
        End a transaction that was declared on that link; the caller commits it or not, and
        releases it.

        Raises:
            TransactionTimeout, TransactionUnknown: as `find`.
        """
        found = self.find(txn_id)
        if found.link != link:
            raise TransactionUnknown("the transaction was declared on another link")
        del self._open[txn_id]
        found.timer.cancel()
        self._discharged[txn_id] = found
        return found

    def release(self, transaction: Transaction) -> None:
        """Note that the transaction that was taken is committed, or won't be."""
        del self._discharged[transaction.id]
        self._forget_work(transaction)

    @staticmethod
    def undo(transaction: Transaction) -> None:
        """Give back what the clients have settled in a transaction that is rolled back."""
        for each in transaction.enlisted:
            if each.undone is not None:
                each.undone()

    def roll_back_all(self, link: LinkId) -> None:
        """Roll back the transactions of a coordinator's link that has ended."""
        for each in [each for each in self._open.values() if each.link == link]:
            self._close(each)

    def _add(self, to: Transaction, work: TransactedWork, count: int, size: int) -> None:
        if to.failure:
            raise TransactionRolledBack(f"the transaction can only be rolled back: {to.failure}")
        options = self._options
        if to.count + count > options.max_transaction_work:
            most = options.max_transaction_work
            text = f"a transaction has at most {most} messages and settlements"
            raise self.fail(to, QuotaExceeded(text))
        if self._size + size > options.max_transaction_bytes:
            most = options.max_transaction_bytes
            text = f"the open transactions of a connection take at most {most} bytes of memory"
            raise self.fail(to, QuotaExceeded(text))
        try:
            self._pending.hold(size)
        except QuotaExceeded as error:
            raise self.fail(to, error) from None
        if not to.work and to.id in self._open:
            self._nursery.start_soon(self._time_out, to)
        to.work.append(work)
        to.count += count
        to.size += size
        self._size += size

    async def _time_out(self, transaction: Transaction) -> None:
        with transaction.timer:
            await trio.sleep(self._options.transaction_timeout)
            self._close(transaction)
            self._timed_out[transaction.id] = None

    def _close(self, transaction: Transaction) -> None:
        del self._open[transaction.id]
        transaction.timer.cancel()
        self._forget_work(transaction)
        self.undo(transaction)

    def _forget_work(self, transaction: Transaction) -> None:
        self._size -= transaction.size
        self._pending.release(transaction.size)
        self._enlisted.difference_update(each.lock_token for each in transaction.enlisted)
