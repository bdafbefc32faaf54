"""Duplicate detection: the ids of what a queue took within its window, so that it's taken once."""

from collections.abc import Sequence

import attrs

from gateway.domain.entity import QueueProperties
from gateway.domain.stored import MICROSECOND, Incoming, Now, SeenIds

Numbered = tuple[int, Incoming]


@attrs.define(eq=False)
class Duplicates:
    """Of one queue; without duplicate detection it finds none and remembers nothing."""

    _seen: SeenIds

    def sift(
        self, numbered: Sequence[Numbered], properties: QueueProperties, now: Now
    ) -> Sequence[Numbered]:
        """Those that are no duplicates, of earlier ones or of each other."""
        if not properties.requires_duplicate_detection:
            return numbered
        kept: list[Numbered] = []
        ids: set[str] = set()
        for number, message in numbered:
            if message.message_id is not None:
                until = self._seen.until(message.message_id)
                if message.message_id in ids or (until is not None and until > now.wall):
                    continue
                ids.add(message.message_id)
            kept.append((number, message))
        return kept

    def remember(self, messages: Sequence[Incoming], properties: QueueProperties, now: Now) -> None:
        if not properties.requires_duplicate_detection:
            return
        until = now.wall + properties.duplicate_detection_window // MICROSECOND
        for message in messages:
            if message.message_id is not None:
                self._seen.put(message.message_id, until)
        if now.trusted:
            # Twice as many as came, so that what is over doesn't pile up.
            self._seen.forget(now.wall, 2 * len(messages) + 1)
