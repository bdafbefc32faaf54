"""
The pool of connections to receive on.

A receiver can't tell a connection on which nothing comes any more from an empty queue. So each
connection that is used without a delivery or an answered settlement is asked now and then.
"""

from typing import Final

import attrs
import trio

from gateway.brokers.amqp.peer import ConnectionPool, NamespaceConnection
from gateway.brokers.amqp.senders import attach_watch
from gateway.domain.errors import BrokerError
from gateway.net.amqp.client import AmqpClient
from gateway.net.amqp.links import ReceivingLink

# Seconds without news after which a connection is asked; as long as the peer may say nothing at all
# (`idle_timeout`). Shorter would find little more, and each question costs the peer a link.
ASKED_AFTER: Final = 10.0


@attrs.define(eq=False, kw_only=True)
class ReceivingConnections(ConnectionPool):
    """
    A pool of connections to receive on. One that has gone bad is replaced by itself, and only when
    another one could be opened: its end costs locks.
    """

    _asked: set[NamespaceConnection] = attrs.field(
        factory=set, init=False
    )  # whether they still answer

    async def _introduce(self, client: AmqpClient, nursery: trio.Nursery) -> NamespaceConnection:
        peer = await super()._introduce(client, nursery)
        nursery.start_soon(self._watch, peer)
        return peer

    async def _watch(self, peer: NamespaceConnection) -> None:
        asked = trio.current_time()
        while not peer.is_replaced:
            due = max(asked, peer.last_answer) + ASKED_AFTER
            await trio.sleep_until(due)
            if peer.last_answer + ASKED_AFTER <= due:
                asked = due
                self._begin_to_retire(peer, is_sure=False)

    def _replace_bad(self, peer: NamespaceConnection, since: float, is_silent: bool) -> None:
        self._begin_to_retire(peer, is_sure=is_silent or not _receivers(peer))

    def _begin_to_retire(self, peer: NamespaceConnection, *, is_sure: bool) -> None:
        if peer not in self._asked and not peer.is_replaced:
            self._nursery.start_soon(self._retire, peer, is_sure)

    async def _retire(self, peer: NamespaceConnection, is_sure: bool) -> None:
        """
        Let the receivers go over to another connection, if one can be opened. An answered attach
        speaks for this one. It isn't asked if a settlement had no answer, or nobody uses it.
        """
        self._asked.add(peer)
        try:
            if (is_sure or not await self._answers(peer)) and await self._can_open(peer):
                peer.replace()
        finally:
            self._asked.discard(peer)
        if peer.is_replaced:
            for link in _receivers(peer):
                link.wake()
            await self._leave(peer)

    async def _can_open(self, peer: NamespaceConnection) -> bool:
        """
        True if there is another connection, which was opened for that. If there is none, the
        namespace answers nobody, and what is locked stays locked.
        """
        async with self._dialling:
            if peer.over:
                return False
            try:
                await self._open()
            except BrokerError:
                return False
        return True

    async def _leave(self, peer: NamespaceConnection) -> None:
        """
        Close a connection that was replaced, once no receiver uses it or it answers nothing for
        longer than a good connection may be silent.
        """
        while any(not link.is_left or link.is_holding for link in _receivers(peer)):
            with trio.move_on_after(ASKED_AFTER):
                await peer.client.wait_ended()
            if not await self._answers(peer):
                break
        await super()._leave(peer)

    async def _answers(self, peer: NamespaceConnection) -> bool:
        """
        True if the peer attaches one more link to a receiver's queue in the time that each link has
        for that, or nobody receives there.
        """
        await trio.lowlevel.checkpoint()
        address = next((link.address for link in _receivers(peer) if link.address), None)
        if address is None:
            return True
        with trio.move_on_after(self._options.connect_timeout):
            try:
                (await attach_watch(peer, address)).close()
            except BrokerError as error:
                return not error.counts_as_outage
            return True
        return False


def _receivers(peer: NamespaceConnection) -> list[ReceivingLink]:
    """The links of receivers: those of requests and watches are of other classes."""
    return [each for each in peer.client.links.values() if type(each) is ReceivingLink]
