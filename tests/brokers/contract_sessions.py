"""Parts of the tests of contract sessions that other tests need, too."""

from typing import Any

from gateway.domain.entity import EntityPath
from gateway.domain.message import Message
from tests.brokers.contract import (
    make,
)


def of_session(session: str, *numbers: object) -> list[Message]:
    return [Message(message_id=f"{session}{number}", session_id=session) for number in numbers]


async def make_sessions(broker: Any, **properties: Any) -> EntityPath:
    return await make(broker, "chats", requires_session=True, **properties)
