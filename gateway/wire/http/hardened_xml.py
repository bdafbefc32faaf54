"""
XML from outside: no document types, no entities, and limits of size, depth, attributes, elements
and texts. A document takes a few times its own memory while it is parsed, whatever is in it.
"""

import codecs
import re
from typing import Final
from xml.etree.ElementTree import Element, ParseError, TreeBuilder

from defusedxml.common import DefusedXmlException
from defusedxml.ElementTree import DefusedXMLParser

from gateway.domain.errors import MessageError

# Bytes: more than a page of entities with all their properties takes.
MAX_BYTES: Final = 1024 * 1024
MAX_DEPTH: Final = 32  # elements within each other: the services' documents have fewer than ten
MAX_ATTRIBUTES: Final = 64  # of one element; the services' have a few namespaces
MAX_ELEMENTS: Final = 32 * 1024  # a page of 5000 queues has three each
MAX_TEXT: Final = 256 * 1024  # characters between two tags
_PIECE: Final = 64 * 1024  # bytes that are decoded at a time
_ENCODING: Final = re.compile(
    rb"(?:\xef\xbb\xbf)?<\?xml\s[^>]*?\sencoding\s*=\s*[\"']([A-Za-z0-9._-]{1,40})[\"']", re.ASCII
)
# ASCII is also UTF-8. Python's clients declare UTF-16 and send UTF-8.
_READ_AS_UTF_8: Final = frozenset({b"utf-8", b"utf8", b"us-ascii", b"ascii", b"utf-16"})
# Characters that no XML 1.0 document may contain, escaped or not (section 2.2, Char).
_ILLEGAL: Final = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_ILLEGAL_ASCII: Final = bytes(number for number in range(128) if _ILLEGAL.match(chr(number)))


class XmlError(MessageError):
    """The bytes aren't an XML document that is accepted here."""


class _Builder(TreeBuilder):
    """A tree builder that stops at limits which expat doesn't have."""

    def __init__(self) -> None:
        super().__init__()
        self._depth = 0
        self._elements = 0
        self._text = 0  # characters since the last tag

    def start(self, tag: str, attrs: dict[str, str], /) -> Element:
        self._depth += 1
        self._elements += 1
        self._text = 0
        if self._depth > MAX_DEPTH:
            raise XmlError(f"XML: up to {MAX_DEPTH} nested elements expected")
        if self._elements > MAX_ELEMENTS:
            raise XmlError(f"XML: up to {MAX_ELEMENTS} elements expected")
        if len(attrs) > MAX_ATTRIBUTES:
            raise XmlError(f"XML: up to {MAX_ATTRIBUTES} attributes expected, got {len(attrs)}")
        return super().start(tag, attrs)

    def end(self, tag: str, /) -> Element:
        self._depth -= 1
        self._text = 0
        return super().end(tag)

    def data(self, data: str, /) -> None:
        # Each line and each escaped character of a text comes alone, as a string of its own.
        self._text += len(data)
        if self._text > MAX_TEXT:
            raise XmlError(f"XML: up to {MAX_TEXT} characters between two tags expected")
        super().data(data)


def parse_xml(body: bytes, *, max_bytes: int = MAX_BYTES) -> Element:
    """
    Parse a document in UTF-8. A document that declares another encoding is refused, except for
    UTF-16, which clients declare by mistake.

    Raises:
        XmlError: the text says why.
    """
    if len(body) > max_bytes:
        raise XmlError(f"XML: up to {max_bytes} bytes expected, got {len(body)}")
    declared = _ENCODING.match(body)
    if declared and declared[1].lower() not in _READ_AS_UTF_8:
        raise XmlError(f"XML: encoding UTF-8 expected, got {declared[1].decode()}")
    parser = DefusedXMLParser(target=_Builder(), forbid_dtd=True)
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    try:
        for at in range(0, len(body), _PIECE):
            parser.feed(decoder.decode(body[at : at + _PIECE], at + _PIECE >= len(body)))
        root: Element = parser.close()
    except (ParseError, DefusedXmlException, UnicodeDecodeError) as error:
        raise XmlError(f"XML: {error}") from error
    return root


def text_of(parent: Element, name: str) -> str:
    """
    The text of the first child with that name, in any namespace; empty if no child has that name.
    """
    child = parent.find(f"{{*}}{name}")
    return ("" if child is None else child.text or "").strip()


def is_legal(text: str) -> bool:
    """True if a document can contain the text."""
    if text.isascii():  # usual, and tested in a fifth of the time
        data = text.encode()
        return len(data.translate(None, _ILLEGAL_ASCII)) == len(data)
    return _ILLEGAL.search(text) is None


def without_illegal(text: str) -> str:
    """The text, with a replacement character for each character that no document can contain."""
    return _ILLEGAL.sub("\ufffd", text)
