"""
Messages that are hidden from others for as long as whoever takes them wants, as Storage Queue
does it: no lock that ends with a connection or a process, but a date that is stored.

    take, change     the message is scheduled for when it's visible again, and gets a new stamp
    visible again    the stamp stays: who had the message may still remove it
    taken again      the next stamp, or one more delivery; tickets of before are stale
"""

from collections.abc import Sequence
from typing import Final

import attrs

from gateway.domain.contents import SWEEP, Contents
from gateway.domain.errors import BrokerError, LockLost, MessageNotFound, MessageTooLarge
from gateway.domain.message import Delivery
from gateway.domain.poison import Poison, too_many
from gateway.domain.stored import Now, Row, State

_PAGE: Final = 64  # rows that are looked at together
_SERVED: Final = frozenset({State.ACTIVE, State.SCHEDULED})


@attrs.frozen
class Ticket:
    """
    What changes or removes a message: good until somebody takes or changes it after that.

    `deliveries` is how often it had been taken, in whichever way: a lock leaves no stamp.
    """

    sequence: int
    stamp: int
    deliveries: int = 0


@attrs.frozen(kw_only=True)
class Shown:
    """
    A message as its taker has it.

    `delivery.locked_until` is when others see it, None where they do now. `ticket` is None where
    the namespace can't tell one.
    """

    delivery: Delivery
    ticket: Ticket | None


@attrs.frozen
class VisibilityRules:
    """The rules for one queue. Who calls has swept it and knows that it may be received from."""

    _contents: Contents

    def take(
        self, limit: int, hidden: int, now: Now, poison: Poison | None = None
    ) -> tuple[list[Row], bool]:
        """
        Hide up to `limit` messages for so many microseconds, the oldest first; say whether there
        may be more than it has looked at. Messages that are `poison` go there instead.
        """
        holdings, fit = self._contents.holdings, self._contents.fit
        taken: list[Row] = []
        looked_at = 0
        while len(taken) < limit and looked_at < limit + SWEEP:
            rows = holdings.next(State.ACTIVE, limit - len(taken))
            looked_at += len(rows)
            if not rows:
                return taken, self._contents.is_due(now)
            taken += [
                self._taken(row, hidden, now)
                for row in rows
                if fit(row, now) and not self._set_aside(row, poison, now)
            ]
        return taken, True

    def look(self, after: int, limit: int, now: Now) -> tuple[list[Row], int | None]:
        """
        Some messages with a higher number that anybody could take now; none is touched. And the
        last number that was looked at; None: there are no more.
        """
        contents = self._contents
        page = limit + min(len(contents.holdings.locked), _PAGE) if after < 0 else _PAGE
        rows = contents.storage.rows.after(State.ACTIVE, after, page)
        found = [row for row in rows if self._is_visible(row, now)]
        return found[:limit], rows[-1].sequence if len(rows) == page else None

    def hide_new(self, row: Row, hidden: int, now: Now) -> Row:
        """Hide a message that was sent in this step, if it's here."""
        stored = self._contents.storage.rows.get(row.sequence)
        if stored is None or stored.state is not State.ACTIVE:
            return row
        return self._stamped(stored, hidden, now)

    def change(self, ticket: Ticket, hidden: int, body: bytes | None, now: Now) -> Row:
        """
        Hide a message for so long from now on, with another body if one is given.

        Raises:
            MessageNotFound, LockLost: as `find`.
            MessageTooLarge: it stays as it is.
        """
        row = self.find(ticket, now)
        if body is not None:
            row = self._with_body(row, body)
        return self._stamped(row, hidden, now)

    def remove(self, ticket: Ticket, now: Now) -> None:
        """
        Raises:
            MessageNotFound, LockLost: as `find`.
        """
        self._contents.holdings.remove(self.find(ticket, now))

    def find(self, ticket: Ticket, now: Now) -> Row:
        """
        The message of that ticket.

        Raises:
            MessageNotFound: there is none, or it has expired.
            LockLost: somebody has taken or changed it since.
        """
        row = self._contents.storage.rows.get(ticket.sequence)
        if row is None or row.damaged or row.state not in _SERVED or self._is_expired(row, now):
            raise MessageNotFound(f"{self._contents.entity.path}: no message {ticket.sequence}")
        since = row.stamp != ticket.stamp or row.deliveries > ticket.deliveries
        if since or row.sequence in self._contents.holdings.locked:
            raise LockLost(f"message {ticket.sequence} was taken or changed since")
        return row

    def clear(self, after: int, limit: int) -> int | None:
        """
        Remove some messages with a higher number; return the last one's, None: there are no more.

        Those that somebody has locked stay.
        """
        holdings, rows = self._contents.holdings, self._contents.storage.rows
        last = None
        for state in (State.ACTIVE, State.SCHEDULED, State.DEFERRED):
            found: Sequence[Row] = rows.after(state, after, limit)
            for row in found:
                if row.sequence not in holdings.locked:
                    holdings.remove(row)
            if len(found) == limit:
                last = found[-1].sequence if last is None else min(last, found[-1].sequence)
        return last

    def _set_aside(self, row: Row, poison: Poison | None, now: Now) -> bool:
        """Whether the message is one that has gone. It stays, and is served, where it can't go."""
        if poison is None or row.deliveries < poison.after:
            return False
        try:
            targets = poison.onward.targets(row, 1, now)
        except BrokerError:
            return False
        why = too_many(self._contents.entity.path, row.deliveries, poison.after)
        self._contents.move(row, why, targets, now)
        poison.note(row)
        return True

    def _taken(self, row: Row, hidden: int, now: Now) -> Row:
        return self._stamped(row, hidden, now, deliveries=1)

    def _stamped(self, row: Row, hidden: int, now: Now, *, deliveries: int = 0) -> Row:
        """Hide it, or show it at once; it was delivered so often more."""
        contents = self._contents
        new = attrs.evolve(
            row,
            state=State.SCHEDULED if hidden > 0 else State.ACTIVE,
            due=now.wall + hidden if hidden > 0 else None,
            original=contents.next_sequence(),
            deliveries=row.deliveries + deliveries,
        )
        if hidden > 0:
            contents.holdings.replace(row, new)
            return new
        if row.state is State.ACTIVE:
            contents.holdings.replace(row, new)
        else:
            contents.holdings.show(row, new)
        return new

    def _with_body(self, row: Row, body: bytes) -> Row:
        content, size = self._contents.packing.with_body(row.content, body)
        limit = self._contents.entity.max_message_size
        if size > max(limit, row.size):
            raise MessageTooLarge(f"a message has at most {limit} bytes, got {size}")
        return self._contents.holdings.rewrite(row, content, size)

    def put_aside(self, row: Row) -> None:
        """Put a message that can't be read where nothing serves it, if it's still there."""
        stored = self._contents.storage.rows.get(row.sequence)
        if stored is not None and stored.stamp == row.stamp:
            self._contents.holdings.quarantine(stored)

    def _is_visible(self, row: Row, now: Now) -> bool:
        free = row.sequence not in self._contents.holdings.locked
        return free and not row.damaged and not self._is_expired(row, now)

    def _is_expired(self, row: Row, now: Now) -> bool:
        return row.expires is not None and row.expires <= now.wall and now.trusted
