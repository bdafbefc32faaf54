"""Characters that an XML document can contain."""

import pytest

from gateway.wire.http.hardened_xml import XmlError, is_legal, parse_xml


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
