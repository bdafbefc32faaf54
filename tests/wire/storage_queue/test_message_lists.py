"""A list of messages is read with a pattern exactly as an XML parser reads it, or left to that."""

from datetime import UTC, datetime

from hypothesis import example, given
from hypothesis import strategies as st

from gateway.wire.storage_queue.errors import StorageRefusal
from gateway.wire.storage_queue.operations import Messages, QueueMessage
from gateway.wire.storage_queue.xml import build_messages, parse_messages

DATE = "Thu, 26 Nov 2026 15:02:59 GMT"
BEGIN = "<QueueMessagesList>"
HEADS = st.sampled_from(
    ["", '<?xml version="1.0" encoding="UTF-8" standalone="yes"?>', "\ufeff",
     "\ufeff<?xml version='1.0'?>",
     '\ufeff<?xml version="1.0" encoding="utf-8"?>',
     '<?xml version="1.0" encoding="utf-16"?>', " ", "x",
     '<?xml version="1.0" encoding="latin-1"?>', '<?xml version="1.1" encoding="utf-8"?>']
)  # fmt: skip
TEXTS = st.sampled_from(
    ["", "hello", " a b ", "a\tb\nc", "a\rb", "&lt;b&gt;", "&amp;", "&#13;", "&nope;", "]]>",
     "<b/>", "<b>x</b>", '"é"', "\0", "\x0b", "\ufffe", "\U0001f600", "\x85", "\u2028x\u2028",
     "<![CDATA[x]]>", "<!-- -->", "a>b"]
) | st.text(max_size=5)  # fmt: skip
DATES = st.sampled_from([DATE, "", f" {DATE}\n", "yesterday", "Fri, 31 Dec 9999 23:59:59 GMT"])
COUNTS = st.sampled_from(["1", "", "-1", "x", "٣", "9" * 19])


def element(name: str, texts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    usual = texts.map(lambda text: f"<{name}>{text}</{name}>")
    return usual | st.sampled_from(["", f"<{name} />", f"<{name} a='b'>x</{name}>", f"<{name}>"])


ITEMS = st.tuples(
    element("MessageId", TEXTS),
    element("InsertionTime", DATES),
    element("ExpirationTime", DATES),
    element("PopReceipt", TEXTS),
    element("TimeNextVisible", DATES),
    element("DequeueCount", COUNTS),
    element("MessageText", TEXTS),
    st.sampled_from(["", "", "<DeadLetterReason>late</DeadLetterReason>", "x", "<More/>"]),
).map(lambda parts: f"<QueueMessage>{''.join(parts)}</QueueMessage>")
ENDS = st.sampled_from(
    ["</QueueMessagesList>", "</QueueMessagesList>\n", "", "</QueueMessagesList>x", "</Queue>"]
)


def outcome_of(document: bytes) -> Messages | str:
    try:
        return parse_messages(document)
    except StorageRefusal as error:
        return error.code


@given(HEADS, st.lists(ITEMS, max_size=2), ENDS, st.sampled_from([b"", b"\xff"]))
@example("", [], "</QueueMessagesList>", b"")
def test_a_list_is_read_as_a_parser_reads_it(
    head: str, items: list[str], end: str, after: bytes
) -> None:
    content = "".join(items) + end
    document = f"{head}{BEGIN}{content}".encode(errors="surrogatepass") + after
    # A comment changes nothing, but no pattern here knows of comments.
    for_parser = f"{head}{BEGIN}<!-- -->{content}".encode(errors="surrogatepass") + after

    assert outcome_of(document) == outcome_of(for_parser)


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

    assert parse_messages(build_messages(both, encoded=False)) == both
