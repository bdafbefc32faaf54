"""What each operation of the Queue service does to a namespace."""

from datetime import timedelta
from typing import Final

import attrs
import trio

from gateway.capabilities import Visibility
from gateway.domain.entity import EntityPath
from gateway.domain.errors import EntityExists, EntityNotFound
from gateway.domain.message import Delivery, Leg, Message
from gateway.domain.poison import UNLIMITED
from gateway.domain.visibility import Shown, Ticket
from gateway.frontends import storage_messages as messages
from gateway.frontends.storage_notes import (
    Notes,
    change_notes,
    change_service_properties,
    notes_of,
    read_service_properties,
    write_notes,
)
from gateway.frontends.storage_settings import check_settings, terms_for
from gateway.ports import Broker, WallClock
from gateway.wire import storage_queue_operations as storage
from gateway.wire.storage_queue_errors import StorageRefusal
from gateway.wire.storage_queue_fields import is_name

_PAGE: Final = 1000  # queues asked for at once
_NO_STAMP: Final = -1


@attrs.define(eq=False, kw_only=True)
class StorageOperations:
    """
    One namespace under the Queue service.

    Where a message is put with `broker.send`, which protects it where `broker` is a pair, nobody
    learns its number: the receipt of the put is good only as long as `visibility` remembers it.
    """

    broker: Broker
    visibility: Visibility
    sends: bool  # messages are put with `broker.send`
    wall_clock: WallClock

    async def run(
        self, operation: storage.Operation, message_id: str
    ) -> tuple[storage.Answer, Leg | None]:
        """
        Return once it's done; for a put with its leg, if there is more than one.

        `message_id` is for what is put with `broker.send`, a GUID.

        Raises:
            BrokerError: what the namespace says.
            StorageRefusal: what the service would.
        """
        match operation:
            case storage.PutMessage():
                return await self._put(operation, message_id)
            case (
                storage.GetMessages()
                | storage.PeekMessages()
                | storage.UpdateMessage()
                | storage.DeleteMessage()
                | storage.ClearMessages()
            ):
                return await self._of_messages(operation), None
            case (
                storage.ListQueues()
                | storage.GetServiceProperties()
                | storage.SetServiceProperties()
                | storage.GetStats()
            ):
                return await self._of_account(operation), None
            case storage.Preflight():
                raise StorageRefusal("InvalidInput")
        return await self._of_queue(operation), None

    # --- messages

    async def _put(
        self, put: storage.PutMessage, message_id: str
    ) -> tuple[storage.Answer, Leg | None]:
        now, hidden = self.wall_clock(), timedelta(seconds=put.visibility)
        entity = EntityPath.parse(put.queue)
        if not self.sends:
            message = Message(body=put.body, time_to_live=messages.life_of(put, from_visible=False))
            shown = await self.visibility.put(entity, message, hidden)
            return storage.Messages((messages.put_answer(shown, now),)), None
        life = messages.life_of(put, from_visible=True)
        message = Message(
            body=put.body,
            message_id=message_id,
            time_to_live=life,
            scheduled=now + hidden if hidden else None,
            creation_time=now,
        )
        leg = await self.broker.send(entity, [message])
        expires = None if life is None else now + hidden + life
        delivery = Delivery(
            message=message,
            sequence_number=0,
            enqueued=now,
            expires=expires,
            locked_until=now + hidden,
        )
        return storage.Messages(
            (messages.put_answer(Shown(delivery=delivery, ticket=None), now),)
        ), leg

    async def _of_messages(  # noqa: ASYNC910 every case waits
        self,
        operation: storage.GetMessages
        | storage.PeekMessages
        | storage.UpdateMessage
        | storage.DeleteMessage
        | storage.ClearMessages,
    ) -> storage.Answer:
        entity = EntityPath.parse(operation.queue)
        match operation:
            case storage.GetMessages(limit=limit, visibility=hidden):
                taken = await self.visibility.take(entity, limit, terms_for(hidden))
                now = self.wall_clock()
                return storage.Messages(tuple(messages.get_answer(each, now) for each in taken))
            case storage.PeekMessages(limit=limit):
                found = await self.visibility.look(entity, limit)
                now = self.wall_clock()
                return storage.Messages(tuple(messages.peek_answer(each, now) for each in found))
            case storage.UpdateMessage():
                return await self._update(entity, operation)
            case storage.DeleteMessage(message_id=name, pop_receipt=receipt):
                ticket = messages.read_receipt(receipt, name)
                if ticket is None or ticket == messages.UNNUMBERED:
                    ticket = await self._ticket(entity, name, ticket)
                await self.visibility.remove(entity, ticket)
                return storage.Done()
            case storage.ClearMessages():
                await self.visibility.clear(entity)
                return storage.Done()

    async def _update(self, entity: EntityPath, wish: storage.UpdateMessage) -> storage.Updated:
        ticket = messages.read_receipt(wish.pop_receipt, wish.message_id)
        if ticket is None or ticket == messages.UNNUMBERED:
            ticket = await self._ticket(entity, wish.message_id, ticket)
        hidden = timedelta(seconds=wish.visibility)
        shown = await self.visibility.change(entity, ticket, hidden, wish.body)
        return storage.Updated(
            pop_receipt=messages.write_receipt(wish.message_id, shown.ticket),
            visible=shown.delivery.locked_until or self.wall_clock(),
        )

    async def _ticket(
        self, entity: EntityPath, message_id: str, unnumbered: Ticket | None
    ) -> Ticket:
        """
        The ticket of a receipt that has none: of a put whose number wasn't told, or of none.

        Raises:
            MessageNotFound, LockLost: it is none of that message, or there is no such message.
        """
        if unnumbered is not None:
            ticket = await self.visibility.sent(entity, message_id)
            if ticket is not None:
                return ticket
        number = messages.number_of(message_id)
        if number is not None:
            # Of no message: it tells whether there is one.
            await self.visibility.remove(entity, Ticket(number, _NO_STAMP))
        await self.broker.inspect(entity)
        # Who sends gives out ids of which nobody can tell whether they are still there.
        unclear = self.sends and messages.is_id(message_id)
        raise StorageRefusal("PopReceiptMismatch" if unclear else "MessageNotFound")

    # --- queues

    async def _of_queue(self, operation: storage.OfQueue) -> storage.Answer:
        await trio.lowlevel.checkpoint()
        entity = EntityPath.parse(operation.queue)
        match operation:
            case storage.CreateQueue(metadata=metadata):
                check_settings(operation.queue, metadata)
                return await self._create(entity, Notes(metadata=metadata))
            case storage.DeleteQueue():
                await self.broker.delete_queue(entity)
            case storage.SetMetadata(metadata=metadata):
                check_settings(operation.queue, metadata)
                await change_notes(self.broker, entity, metadata=metadata)
            case storage.SetAcl(policies=policies):
                await change_notes(self.broker, entity, policies=policies)
            case storage.GetMetadata():
                info = await self.broker.inspect(entity)
                count = (info.active or 0) + (info.scheduled or 0)
                return storage.QueueMetadata(metadata=notes_of(info).metadata, count=count)
            case storage.GetAcl():
                return storage.Acl(notes_of(await self.broker.inspect(entity)).policies)
        return storage.Done()

    async def _create(self, entity: EntityPath, notes: Notes) -> storage.Answer:
        """A queue that is there with the same metadata will do."""
        await trio.lowlevel.checkpoint()
        properties = attrs.evolve(UNLIMITED, user_metadata=write_notes(notes))
        try:
            await self.broker.create_queue(entity, properties)
        except EntityExists:
            pass
        else:
            return storage.Created()
        try:
            found = notes_of(await self.broker.inspect(entity))
        except EntityNotFound as error:  # it's a topic
            raise StorageRefusal("QueueAlreadyExists") from error
        if dict(found.metadata) != dict(notes.metadata):
            raise StorageRefusal("QueueAlreadyExists")
        return storage.Existed()

    # --- the account

    async def _of_account(
        self,
        operation: storage.ListQueues
        | storage.GetServiceProperties
        | storage.SetServiceProperties
        | storage.GetStats,
    ) -> storage.Answer:
        await trio.lowlevel.checkpoint()
        match operation:
            case storage.ListQueues():
                return await self._list(operation)
            case storage.GetServiceProperties():
                return await read_service_properties(self.broker)
            case storage.SetServiceProperties(properties=properties):
                await change_service_properties(self.broker, properties)
                return storage.Done()
            case storage.GetStats():
                return storage.Stats(last_sync=self.wall_clock())

    async def _list(self, wish: storage.ListQueues) -> storage.QueueList:
        """Those that have names of this service, from the marker on, which is a name."""
        if wish.marker and not is_name(wish.marker):
            raise StorageRefusal("InvalidMarker")
        await trio.lowlevel.checkpoint()
        limit = wish.limit or storage.MAX_QUEUES
        found: list[storage.QueueItem] = []
        skip = 0
        while len(found) <= limit:
            page = await self.broker.list_queues(wish.prefix, skip=skip, top=_PAGE)
            for info in page:
                name = info.path.key
                if is_name(name) and name.startswith(wish.prefix) and name >= wish.marker:
                    found.append(storage.QueueItem(name=name, metadata=notes_of(info).metadata))
            if len(page) < _PAGE:
                break
            skip += len(page)
        more = found[limit].name if len(found) > limit else ""
        return storage.QueueList(items=tuple(found[:limit]), next_marker=more)
