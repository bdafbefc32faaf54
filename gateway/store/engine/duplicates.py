"""Duplicate detection: remembers the message ids that a queue accepted within its window."""

from collections.abc import Sequence

import attrs

from gateway.domain.clocks.times import MICROSECOND, Now
from gateway.domain.entity import QueueProperties
from gateway.store.engine.records import Incoming, SeenIds

Numbered = tuple[int, Incoming]


@attrs.define(eq=False)
class Duplicates:
    """
    The duplicate detection of one queue. Without `requires_duplicate_detection` no message is a
    duplicate, and nothing is remembered.
    """

    _seen: SeenIds

    def sift(
        self, numbered: Sequence[Numbered], properties: QueueProperties, now: Now
    ) -> Sequence[Numbered]:
        """Return the messages that duplicate neither an earlier one nor each other."""
        if not properties.requires_duplicate_detection:
            return numbered
        kept: list[Numbered] = []
        ids: set[str] = set()
        for number, message in numbered:
            if message.message_id is not None:
                until = self._seen.until(message.message_id)
                if message.message_id in ids or (until is not None and until > now.own):
                    continue
                ids.add(message.message_id)
            kept.append((number, message))
        return kept

    def remember(self, messages: Sequence[Incoming], properties: QueueProperties, now: Now) -> None:
        if not properties.requires_duplicate_detection:
            return
        until = now.own + properties.duplicate_detection_window // MICROSECOND
        for message in messages:
            if message.message_id is not None:
                self._seen.put(message.message_id, until)
        if now.trusted:
            # Forget twice as many as were added, so that outdated ids don't accumulate.
            self._seen.forget(now.own, 2 * len(messages) + 1)
