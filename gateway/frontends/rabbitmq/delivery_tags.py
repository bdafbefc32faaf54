"""
The two counts of a channel's deliveries: the broker's begins again with each channel upstream, the
client's goes on.

The broker delivers again, as `redelivered`, all that had no settlement when its last connection was
lost. The earlier tags of that mean nothing to it.
"""

import attrs
from pamqp import commands

from gateway.wire.rabbitmq.relayed import (
    RelayedFrame,
    delivery_tag,
    is_multiple,
    with_delivery_tag,
)


@attrs.define(eq=False)
class DeliveryTags:
    last: int = 0  # the client's tag of the last delivery
    _lost: int = 0  # the client's tag of the last delivery of a lost channel

    @property
    def has_any(self) -> bool:
        """True if the channel upstream has delivered something."""
        return self.last > self._lost

    def delivered(self, frame: RelayedFrame) -> bytes:
        """The method of a delivery, as the client gets it."""
        tag = delivery_tag(frame) + self._lost
        self.last = max(self.last, tag)
        return with_delivery_tag(frame, tag) if self._lost else frame.data

    def lose(self) -> None:
        """Note that the channel upstream is gone."""
        self._lost = self.last

    def settled(self, frame: RelayedFrame) -> bytes:
        """The settlement, as the broker gets it; empty: it isn't for the broker."""
        if not self._lost:
            return frame.data
        tag = delivery_tag(frame)
        if not tag:  # with `multiple` all that the client has; without, an error (1.8.3.13)
            has_none = is_multiple(frame) and self.last == self._lost
            return b"" if has_none else frame.data
        return with_delivery_tag(frame, tag - self._lost) if tag > self._lost else b""

    def is_unknown(self, frame: RelayedFrame) -> bool:
        """True for the settlement of what was never delivered."""
        tag = delivery_tag(frame)
        return tag > self.last or not (tag or is_multiple(frame))

    def of_client(self, close: commands.Channel.Close) -> commands.Channel.Close:
        """The close of a channel whose text names a delivery tag, as the client knows it."""
        head, found, tag = close.reply_text.rpartition("unknown delivery tag ")
        if found and self._lost and tag.isdecimal():
            close.reply_text = f"{head}{found}{int(tag) + self._lost}"
        return close
