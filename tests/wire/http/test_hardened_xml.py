"""Characters that an XML document can contain."""

import pytest

from gateway.wire.http.hardened_xml import (
    MAX_ELEMENTS,
    MAX_TEXT,
    XmlError,
    is_legal,
    parse_xml,
)


@pytest.mark.parametrize("before", ["", "é"], ids=["in ASCII", "not in ASCII"])
@pytest.mark.parametrize("character", [*map(chr, range(128)), *"\ud800\ufffd\ufffe\U0010ffff"])
def test_a_text_is_legal_if_a_parser_reads_it(before: str, character: str) -> None:
    escaped = {"&": "&amp;", "<": "&lt;"}.get(character, character)
    try:
        parse_xml(f"<a>{before}{escaped}</a>".encode(errors="surrogatepass"))
        is_read = True
    except XmlError:
        is_read = False

    assert is_legal(before + character) is is_read


@pytest.mark.parametrize(
    ("inside", "named"),
    [
        ("<b/>" * MAX_ELEMENTS, "elements"),
        ("a\n" * (MAX_TEXT // 2) + "a", "characters"),
        ("&lt;" * (MAX_TEXT + 1), "characters"),
    ],
    ids=["elements", "lines", "escaped"],
)
def test_a_document_that_would_take_much_memory_is_refused(inside: str, named: str) -> None:
    with pytest.raises(XmlError, match=named):
        parse_xml(f"<a>{inside}</a>".encode(), max_bytes=2**22)


def test_texts_between_many_tags_are_read() -> None:
    text = "é\n" * (MAX_TEXT // 2)  # longer than what is decoded at a time

    root = parse_xml(f"<a>{text}<b>{text}</b></a>".encode(), max_bytes=2**22)

    assert (root.text, root[0].text) == (text, text)
