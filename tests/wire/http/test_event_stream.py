from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.errors import MessageError
from gateway.wire.http.event_stream import COMMENT, MAX_EVENT, EventParser, ServerEvent, build_event

LINE = st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]))
EVENTS = st.lists(
    st.builds(
        ServerEvent,
        name=st.from_regex(r"[a-z]{1,9}", fullmatch=True),
        data=st.lists(LINE, min_size=1, max_size=3).map("\n".join),
    ),
    max_size=5,
)


def parse(parts: Sequence[bytes]) -> list[ServerEvent]:
    parser = EventParser()
    return [event for part in parts for event in parser.feed(part)]


@given(events=EVENTS, size=st.integers(1, 50), comments=st.booleans())
def test_events_arrive_however_they_are_cut(
    events: list[ServerEvent], size: int, comments: bool
) -> None:
    data = b"".join(build_event(event) + COMMENT * comments for event in events)

    assert parse([data[i : i + size] for i in range(0, len(data), size)]) == events


def test_an_event_as_it_is_sent() -> None:
    event = ServerEvent(name="trigger", data="one\ntwo")

    assert build_event(event) == b"event: trigger\ndata: one\ndata: two\n\n"


def test_fields_that_others_may_send_are_read() -> None:
    data = b"id: 7\r\nretry: 10\r\ndata:x\r\n\r\n: comment\n\nevent: a\n\n"

    assert parse([data]) == [ServerEvent(name="message", data="x", id="7")]


@pytest.mark.parametrize("line", [b"data: " + b"x" * 1000 + b"\n", b"x" * 1001])
def test_an_event_without_an_end_is_refused(line: bytes) -> None:
    with pytest.raises(MessageError, match=f"more than {MAX_EVENT} bytes"):
        parse([line] * (MAX_EVENT // 1000 + 1))


def test_bytes_that_are_no_text_are_refused() -> None:
    with pytest.raises(MessageError, match="UTF-8"):
        parse([b"data: \xff\n\n"])
