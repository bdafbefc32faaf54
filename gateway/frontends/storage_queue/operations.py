"""The operations of the Queue service become calls of a namespace."""

from datetime import timedelta
from typing import Final

import attrs

from gateway.capabilities import Visibility, send_accepted_by
from gateway.capabilities.receipts import sent_message
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, EntityExists, EntityNotFound
from gateway.domain.message import AcceptedBy, Delivery, Message
from gateway.domain.storage_queue import UNLIMITED, PopReceipt, TakenMessage
from gateway.frontends.client_tokens import ClientTokens, OpenTokens
from gateway.frontends.storage_queue import messages as messages
from gateway.frontends.storage_queue.notes import (
    change_notes,
    change_service_properties,
    notes_of,
    read_service_properties,
)
from gateway.frontends.storage_queue.settings import check_settings, terms_for
from gateway.ports import Broker, WallClock
from gateway.wire.storage_queue import operations as storage
from gateway.wire.storage_queue.errors import StorageRefusal
from gateway.wire.storage_queue.fields import is_name
from gateway.wire.storage_queue.metadata import Notes, write_notes

_PAGE: Final = 1000  # queues listed at once
_NO_STAMP: Final = -1  # no message has a negative one


@attrs.define(eq=False, kw_only=True)
class StorageOperations:
    """
    The operations of the Queue service on a namespace.

    A message put with `broker.send`, which protects it if `broker` is a pair, returns no sequence
    number: the receipt of its put is valid only as long as `visibility` remembers the message, or
    if the namespace has returned one, which `tokens` seals.
    """

    broker: Broker
    visibility: Visibility
    sends: bool  # whether messages are put with `broker.send`
    wall_clock: WallClock
    marks: messages.Marks
    tokens: ClientTokens = attrs.field(factory=OpenTokens)

    async def run(
        self, operation: storage.Operation, message_id: str
    ) -> tuple[storage.Answer, AcceptedBy | None]:
        """
        Return once the operation is done; for a put on a pair, also return which namespace or store
        accepted the message.

        `message_id` is the GUID for a message that is put with `broker.send`.

        Raises:
            BrokerError: as the namespace's method.
            StorageRefusal: as the service would refuse.
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
            case storage.Preflight() | storage.GetUserDelegationKey():  # not of the namespace
                raise StorageRefusal("InvalidInput")
        return await self._of_queue(operation), None

    # --- messages

    async def _put(
        self, put: storage.PutMessage, message_id: str
    ) -> tuple[storage.Answer, AcceptedBy | None]:
        now, hidden = self.wall_clock(), timedelta(seconds=put.visibility)
        entity = EntityPath.parse(put.queue)
        if not self.sends:
            message = Message(body=put.body, time_to_live=messages.life_of(put, from_visible=False))
            taken = await self.visibility.put(entity, message, hidden)
            return storage.Messages((messages.put_answer(taken, now, self.marks),)), None
        life = messages.life_of(put, from_visible=True)
        message = Message(
            body=put.body,
            message_id=message_id,
            time_to_live=life,
            scheduled=now + hidden if hidden else None,
            creation_time=now,
        )
        with sent_message() as sent:
            accepted_by = await send_accepted_by(self.broker, entity, [message])
        receipt: PopReceipt | None = None
        # The primary may have accepted a diverted one as well, too late: another copy.
        if sent.token is not None and accepted_by is AcceptedBy.PRIMARY:
            receipt = PopReceipt(0, 0, token=self.tokens.seal(entity, sent.token))
        expires = None if life is None else now + hidden + life
        delivery = Delivery(
            message=message,
            sequence_number=0,
            enqueued=now,
            expires=expires,
            locked_until=now + hidden,
        )
        taken = TakenMessage(delivery=delivery, receipt=receipt)
        return storage.Messages((messages.put_answer(taken, now, self.marks),)), accepted_by

    async def _of_messages(
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
                taken = await self.visibility.dequeue(entity, limit, terms_for(hidden))
                now = self.wall_clock()
                return storage.Messages(
                    tuple(messages.get_answer(each, now, self.marks) for each in taken)
                )
            case storage.PeekMessages(limit=limit):
                found = await self.visibility.peek(entity, limit)
                now = self.wall_clock()
                return storage.Messages(tuple(messages.peek_answer(each, now) for each in found))
            case storage.UpdateMessage():
                return await self._update(entity, operation)
            case storage.DeleteMessage(message_id=name, pop_receipt=text):
                receipt = messages.read_receipt(text, name, self.marks)
                if receipt is None or receipt == messages.UNNUMBERED:
                    receipt = await self._receipt(entity, name, receipt)
                await self.visibility.remove(entity, receipt)
                return storage.Done()
            case storage.ClearMessages():
                await self.visibility.clear(entity)
                return storage.Done()

    async def _update(self, entity: EntityPath, wish: storage.UpdateMessage) -> storage.Updated:
        receipt = messages.read_receipt(wish.pop_receipt, wish.message_id, self.marks)
        if receipt is None or receipt == messages.UNNUMBERED:
            receipt = await self._receipt(entity, wish.message_id, receipt)
        hidden = timedelta(seconds=wish.visibility)
        taken = await self.visibility.change(entity, receipt, hidden, wish.body)
        return storage.Updated(
            pop_receipt=messages.write_receipt(wish.message_id, taken.receipt, self.marks),
            visible=taken.delivery.locked_until or self.wall_clock(),
        )

    async def _receipt(
        self, entity: EntityPath, message_id: str, unnumbered: PopReceipt | None
    ) -> PopReceipt:
        """
        Find the receipt for a client's receipt that has no sequence number, since its put returned
        none, or that is forged.

        Raises:
            MessageNotFound: there is no such message.
            LockLost: the message exists, but the receipt isn't the current one.
            StorageRefusal: as the first or the second, for an id without a sequence number.
        """
        if unnumbered is not None:
            receipt = await self.visibility.sent(entity, message_id)
            if receipt is not None:
                return receipt
        number = messages.number_of(message_id)
        if number is not None:
            # With a stamp that no message has, `remove` only tests whether the message exists.
            await self.visibility.remove(entity, PopReceipt(number, _NO_STAMP))
        await self.broker.inspect(entity)
        # With `broker.send`, ids are given out whose messages may or may not still exist.
        unclear = self.sends and messages.is_id(message_id)
        raise StorageRefusal("PopReceiptMismatch" if unclear else "MessageNotFound")

    # --- queues

    async def _of_queue(self, operation: storage.OfQueue) -> storage.Answer:
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
                count = None if info.active is None else info.active + (info.scheduled or 0)
                return storage.QueueMetadata(metadata=notes_of(info).metadata, count=count)
            case storage.GetAcl():
                return storage.Acl(notes_of(await self.broker.inspect(entity)).policies)
        return storage.Done()

    async def _create(self, entity: EntityPath, notes: Notes) -> storage.Answer:
        """Create the queue; an existing queue with the same metadata counts as created."""
        properties = attrs.evolve(UNLIMITED, user_metadata=write_notes(notes))
        try:
            await self.broker.create_queue(entity, properties)
        except EntityExists:
            pass
        else:
            return storage.Created()
        try:
            found = notes_of(await self.broker.inspect(entity))
        except EntityNotFound as error:  # the entity is a topic
            raise StorageRefusal("QueueAlreadyExists") from error
        except BrokerError as error:
            if not error.counts_as_outage:
                raise
            raise StorageRefusal("QueueAlreadyExists") from error  # nobody knows its metadata
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
        """The queues whose names this service allows, from the marker on, which is a name."""
        if wish.marker and not is_name(wish.marker):
            raise StorageRefusal("InvalidMarker")
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
