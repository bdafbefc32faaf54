"""
Links that browse one session, as the retired SDKs list sessions: their messages are peeked, and
their state is read, by requests beside the link (Java: BrowsableMessageSession).
"""

from collections.abc import Mapping
from typing import Any

import attrs

from gateway.capabilities import Sessions
from gateway.deadlines import answered_within
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, InvalidRequest
from gateway.frontends.amqp.context import Context, Need, amqp_error, need_to_receive
from gateway.frontends.amqp.sessions import session_wanted
from gateway.offering import required
from gateway.wire.amqp.events import LinkAttached, LinkFlow, LinkId, SessionId
from gateway.wire.amqp.servicebus.links import FILTER, PEEK_MODE


def browses(attached: LinkAttached) -> bool:
    """True if the link asks to look at a session without its lock."""
    return attached.properties.get(PEEK_MODE) is True


@attrs.define(eq=False, kw_only=True)
class BrowsingLink:
    """A link that holds no lock and delivers nothing, whatever credit it has."""

    _context: Context
    id: LinkId
    session: SessionId
    entity: EntityPath
    session_id: str
    _filters: Mapping[str, Any]  # of the answer: those that were asked for

    @classmethod
    def of(cls, context: Context, attached: LinkAttached, entity: EntityPath) -> "BrowsingLink":
        """
        The link that the client has attached.

        Raises:
            InvalidRequest: it names no session.
            NotSupported: this namespace doesn't support sessions.
        """
        if (wanted := session_wanted(attached)) is None:
            raise InvalidRequest(f"{FILTER}: the id of the session to browse expected")
        required(context.broker, Sessions)
        assert attached.source is not None, "the source has the session filter"
        return cls(
            context=context,
            id=attached.link,
            session=attached.session,
            entity=entity,
            session_id=wanted,
            filters={FILTER: attached.source.filters[FILTER]},
        )

    @property
    def need(self) -> Need:
        return need_to_receive(self.entity)

    async def run(self) -> None:
        """Answer the attach: the queue must have sessions."""
        try:
            with answered_within(self._context.options.attach_timeout, f"from {self.entity}"):
                await required(self._context.broker, Sessions).list_sessions(self.entity, top=1)
        except BrokerError as error:
            self._context.refuse(self.id, amqp_error(error))
            return
        self._context.engine.accept(self.id, filters=self._filters)

    def flow(self, event: LinkFlow) -> None:
        if event.drain:
            self._context.engine.drained(self.id)

    def stop(self) -> None:
        """Do nothing: the link holds nothing."""
