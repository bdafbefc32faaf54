"""A list of messages is read with a pattern exactly as an XML parser reads it, or left to that."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire.storage_queue.errors import StorageRefusal
from gateway.wire.storage_queue.operations import Messages, QueueMessage
from gateway.wire.storage_queue.xml import build_messages, parse_messages

DATE = "Thu, 26 Nov 2026 15:02:59 GMT"
BEGIN = "<QueueMessagesList>"
END = "</QueueMessagesList>"
HEADS = [
    "",
    '<?xml version="1.0" encoding="UTF-8" standalone="yes"?>',
    '\ufeff<?xml version="1.0" encoding="utf-8"?>',
    "\ufeff",
    "\ufeff<?xml version='1.0'?>",
    '<?xml version="1.0" encoding="utf-16"?>',
    '<?xml version="1.0" encoding="latin-1"?>',
    '<?xml version="1.1" encoding="utf-8"?>',
    " ",
    "x",
]
ENDS = [END, f"{END}\n", f"{END}x", "</Queue>", "x</Queue>", "<QueueMessage>", ""]
TEXTS = [
    *("", "hello", " a b ", "a\tb\nc", "a\rb", '"é"', "\U0001f600", "\x85", "\u2028x\u2028"),
    *("&lt;b&gt;", "&amp;", "&#13;", "&nope;", "a>b", "]]>", "<b/>", "<b>x</b>", "<![CDATA[x]]>"),
    *("\0", "\x0b", "\ufffe", "\ud800", "<!-- -->"),
]
ANY_TEXT = st.sampled_from(TEXTS) | st.text(max_size=5)
DATES = st.sampled_from([DATE, "", f" {DATE}\n", "yesterday", "Fri, 31 Dec 9999 23:59:59 GMT"])
COUNTS = st.sampled_from(["1", "", "-1", "x", "٣", "9" * 19])


USUAL = {
    "MessageId": "1",
    "InsertionTime": DATE,
    "ExpirationTime": DATE,
    "PopReceipt": "MjZO",
    "TimeNextVisible": DATE,
    "DequeueCount": "1",
    "MessageText": "hello",
}
ODD = {name: DATES if text == DATE else ANY_TEXT for name, text in USUAL.items()} | {
    "DequeueCount": COUNTS
}


@st.composite
def items(draw: st.DrawFn) -> str:
    """A message in which one element, or the part after it, may be odd."""
    odd = draw(st.sampled_from([*USUAL, "nothing"]))
    parts = [f"<{name}>{text}</{name}>" for name, text in USUAL.items() if name != odd]
    if odd in USUAL:
        form = draw(
            st.sampled_from(["<{0}>{1}</{0}>"] * 4 + ["", "<{0} />", "<{0} a='b'>{1}</{0}>"])
        )
        parts.insert(list(USUAL).index(odd), form.format(odd, draw(ODD[odd])))
    after = draw(st.sampled_from(["", "", "<DeadLetterReason>late</DeadLetterReason>", "x"]))
    return f"<QueueMessage>{''.join(parts)}{after}</QueueMessage>"


def outcome_of(document: bytes) -> Messages | str:
    try:
        return parse_messages(document)
    except StorageRefusal as error:
        return error.code


def assert_read_as_by_a_parser(before: str, content: str, after: bytes = b"") -> None:
    document = f"{before}{BEGIN}{content}".encode(errors="surrogatepass") + after
    # A comment changes nothing, but no pattern here knows of comments.
    for_parser = f"{before}{BEGIN}<!-- -->{content}".encode(errors="surrogatepass") + after

    assert outcome_of(document) == outcome_of(for_parser)


@given(st.lists(items(), max_size=2))
def test_messages_are_read_as_a_parser_reads_them(found: list[str]) -> None:
    assert_read_as_by_a_parser("", "".join(found) + END)


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_is_read_as_a_parser_reads_it(text: str) -> None:
    content = f"<QueueMessage><MessageText>{text}</MessageText></QueueMessage>{END}"
    assert_read_as_by_a_parser("", content)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("after", [b"", b"\xff"])
def test_a_document_is_read_as_a_parser_reads_it(head: str, end: str, after: bytes) -> None:
    assert_read_as_by_a_parser(head, f"<QueueMessage></QueueMessage>{end}", after)


def test_an_ordinary_list_is_read_whole() -> None:
    date = datetime(2026, 11, 26, 15, 2, 59, tzinfo=UTC)
    put = QueueMessage(
        message_id="1", inserted=date, expires=None, pop_receipt="MjZO", visible=date
    )
    got = QueueMessage(
        message_id="2", inserted=date, expires=date, pop_receipt="x", visible=date, dequeues=3,
        body='{"a": "é"}'.encode(),
    )  # fmt: skip
    both = Messages((put, got))

    assert parse_messages(b"".join(build_messages(both, encoded=False))) == both
