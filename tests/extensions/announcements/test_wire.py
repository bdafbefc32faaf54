import pytest

from gateway.domain.entity import EntityPath
from gateway.domain.errors import InvalidRequest
from gateway.extensions.announcements.wire import OPEN, build_announcement, parse_announcement
from gateway.wire.http.event_stream import ServerEvent


def test_an_announcement_is_read_as_it_was_written() -> None:
    event = build_announcement(EntityPath("Orders/north"), 1024)

    assert parse_announcement(event) == (EntityPath("orders/north"), 1024)
    assert event.data == '{"queue": "Orders/north", "size": 1024}'
    assert parse_announcement(OPEN) is None


@pytest.mark.parametrize(
    "data",
    [
        "",
        "[]",
        "{}",
        '{"queue": 1}',
        '{"queue": "a//b"}',
        '{"queue": "a", "size": -1}',
        '{"queue": "a", "size": true}',
        '{"queue": "a", "size": 1.5}',
    ],
)
def test_an_announcement_that_cant_be_read_is_an_error(data: str) -> None:
    with pytest.raises(InvalidRequest):
        parse_announcement(ServerEvent(name="trigger", data=data))
