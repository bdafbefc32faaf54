"""
Invisibility timeouts as in Storage Queue: a received message is hidden until a stored date. Unlike
a lock, this doesn't end with a connection or a process.

  take, change     schedule the message for the end of its invisibility, with a new stamp
  visible again    the stamp stays: the receiver may still delete the message by its receipt
  taken again      changes the stamp or the delivery count: earlier receipts become invalid
"""

from collections.abc import Callable, Sequence
from typing import Final

import attrs

from gateway.domain.clocks.times import Now
from gateway.domain.errors import BrokerError, LockLost, MessageNotFound, MessageTooLarge
from gateway.domain.storage_queue import PopReceipt, too_many
from gateway.store.engine.queue_content import SWEEP, Onward, QueueContent
from gateway.store.engine.records import MOST_PEEKED, Row, State, with_own_dates

_PAGE: Final = 64  # rows that one peek looks at
_SERVED: Final = frozenset({State.ACTIVE, State.SCHEDULED})


@attrs.frozen
class Poison:
    """
    A message delivered `after` times goes to `onward`; `note` is called with each row that went.
    """

    after: int
    onward: Onward
    note: Callable[[Row], None]


@attrs.frozen
class VisibilityRules:
    """
    The visibility rules of one queue. The caller has swept the queue and checked that it is
    receivable.
    """

    _content: QueueContent

    def dequeue(
        self, limit: int, hidden: int, now: Now, poison: Poison | None = None
    ) -> tuple[list[Row], bool]:
        """
        Hide up to `limit` messages for `hidden` microseconds, the oldest first. Return the
        messages, and True if there may be more messages than were looked at. Poison messages are
        moved to their destination instead.
        """
        index, fit = self._content.index, self._content.fit
        taken: list[Row] = []
        looked_at = 0
        while len(taken) < limit and looked_at < limit + SWEEP:
            rows = index.next(State.ACTIVE, limit - len(taken))
            looked_at += len(rows)
            if not rows:
                return taken, self._content.is_due(now)
            taken += [
                self._taken(row, hidden, now)
                for row in rows
                if fit(row, now) and not self._set_aside(row, poison, now)
            ]
        return taken, True

    def peek(self, after: int, limit: int, now: Now) -> tuple[list[Row], int | None]:
        """
        Return up to `limit` visible messages with a sequence number above `after`, unchanged, and
        the last number that was looked at; None: there are no more, or those that were found have
        `MOST_PEEKED` bytes together.
        """
        content = self._content
        page = limit + min(content.index.locked, _PAGE) if after < 0 else _PAGE
        rows = content.storage.rows.page(State.ACTIVE, after, page, MOST_PEEKED)
        found = [row for row in rows if self._is_visible(row, now)]
        if sum(row.size for row in found) >= MOST_PEEKED:
            return found[:limit], None
        is_cut = len(rows) == page or sum(row.size for row in rows) >= MOST_PEEKED
        return found[:limit], rows[-1].sequence if is_cut else None

    def hide_new(self, row: Row, hidden: int, now: Now) -> Row:
        """Hide a message that was sent in this step, if it was stored in this queue."""
        stored = self._content.storage.rows.get(row.sequence)
        if stored is None or stored.state is not State.ACTIVE:
            return row
        return self._stamped(stored, hidden, now)

    def change(self, receipt: PopReceipt, hidden: int, body: bytes | None, now: Now) -> Row:
        """
        Hide a message for `hidden` microseconds from now on, optionally with a new body.

        Raises:
            MessageNotFound, LockLost: as `find`.
            MessageTooLarge: the body is too large; nothing was changed.
            QuotaExceeded: as `QueueContent.check_growth`; nothing was changed.
        """
        row = self.find(receipt, now)
        if body is not None:
            row = self._with_body(row, body)
        return self._stamped(row, hidden, now)

    def remove(self, receipt: PopReceipt, now: Now) -> None:
        """
        Delete the message of a receipt.

        Raises:
            MessageNotFound, LockLost: as `find`.
        """
        self._content.index.remove(self.find(receipt, now))

    def find(self, receipt: PopReceipt, now: Now) -> Row:
        """
        Return the message of a receipt.

        Raises:
            MessageNotFound: the message doesn't exist, or has expired.
            LockLost: another client has received or changed the message since.
        """
        row = self._content.storage.rows.get(receipt.sequence)
        if row is None or row.damaged or row.state not in _SERVED or self._is_expired(row, now):
            raise MessageNotFound(
                f"{self._content.entity.path}: no visible or hidden message {receipt.sequence}"
            )
        since = row.stamp != receipt.stamp or row.deliveries > receipt.deliveries
        if since or self._content.index.is_locked(row):
            raise LockLost(
                f"message {receipt.sequence} was received or changed since this pop receipt"
            )
        return row

    def clear(self, after: int, limit: int) -> int | None:
        """
        Delete up to `limit` messages with a sequence number above `after`; return the last number
        that was looked at, None: there are no more.

        Locked messages stay.
        """
        index, rows = self._content.index, self._content.storage.rows
        last = None
        for state in (State.ACTIVE, State.SCHEDULED, State.DEFERRED):
            found: Sequence[Row] = rows.after(state, after, limit)
            for row in found:
                if not index.is_locked(row):
                    index.remove(row)
            if len(found) == limit:
                last = found[-1].sequence if last is None else min(last, found[-1].sequence)
        return last

    def _set_aside(self, row: Row, poison: Poison | None, now: Now) -> bool:
        """
        True if a poison message was moved. If its destination refuses it, it stays and is served.
        """
        if poison is None or row.deliveries < poison.after:
            return False
        try:
            copies = poison.onward.copies(row, 1, now)
        except BrokerError:
            return False
        why = too_many(self._content.entity.path, row.deliveries, poison.after)
        self._content.move(row, why, copies, now)
        poison.note(row)
        return True

    def _taken(self, row: Row, hidden: int, now: Now) -> Row:
        return self._stamped(row, hidden, now, deliveries=1)

    def _stamped(self, row: Row, hidden: int, now: Now, *, deliveries: int = 0) -> Row:
        """
        Hide the message, or show it at once if `hidden` is 0; count `deliveries` more deliveries.
        """
        content = self._content
        new = attrs.evolve(
            with_own_dates(row, now.shift),
            state=State.SCHEDULED if hidden > 0 else State.ACTIVE,
            due=now.own + hidden if hidden > 0 else None,
            original=content.next_sequence(),
            deliveries=row.deliveries + deliveries,
        )
        if hidden > 0:
            content.index.replace(row, new)
            return new
        if row.state is State.ACTIVE:
            content.index.replace(row, new)
        else:
            content.index.show(row, new)
        return new

    def _with_body(self, row: Row, body: bytes) -> Row:
        content, size = self._content.packing.with_body(row.content, body)
        limit = self._content.entity.max_message_size
        if size > max(limit, row.size):
            raise MessageTooLarge(
                f"message body: at most {limit} bytes for the whole message expected, got {size}"
            )
        self._content.check_growth(size - row.size)
        return self._content.index.rewrite(row, content, size)

    def quarantine(self, row: Row) -> None:
        """Quarantine a message that can't be read, if it is unchanged since."""
        stored = self._content.storage.rows.get(row.sequence)
        if stored is not None and stored.stamp == row.stamp:
            self._content.index.quarantine(stored)

    def _is_visible(self, row: Row, now: Now) -> bool:
        free = not self._content.index.is_locked(row)
        return free and not row.damaged and not self._is_expired(row, now)

    def _is_expired(self, row: Row, now: Now) -> bool:
        return row.expires is not None and row.expires <= now.own and now.trusted
