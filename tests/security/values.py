"""Values at the ends of their types and beyond, as they may stand in requests."""

import json
import math
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID
from xml.sax.saxutils import escape

from hypothesis import strategies as st

from gateway.domain.message import Described, Kind, Typed, symbol

EDGES: Final = [
    edge + step
    for edge in (0, 2**7, 2**8, 2**15, 2**16, 2**31, 2**32, 2**53, 2**63, 2**64, 10**30)
    for sign in (1, -1)
    for step in (-1, 0, 1)
    for edge in [sign * edge]
]
IN_64_BITS: Final = [edge for edge in EDGES if -(2**63) <= edge < 2**63]
FLOATS: Final = [math.nan, math.inf, -math.inf, -0.0, 5e-324, 1.8e308, 1e22, 0.1]
DATES: Final = [
    datetime.min.replace(tzinfo=UTC),
    datetime.max.replace(tzinfo=UTC),
    datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
    datetime(9998, 12, 31, tzinfo=UTC),
    datetime(2026, 1, 1, 0, 0, 1, tzinfo=UTC),
]
LOCAL_DATES: Final = [datetime.min, datetime.max, datetime(2020, 1, 1, 12, 30, 0, 5)]
SPANS: Final = [timedelta.min, timedelta.max, timedelta(0), timedelta(microseconds=-1)]
TEXTS: Final = [
    *("", " ", "\0", "\x1f", "\x7f", "\x85", "\u2028", "\ufeff", "\ufffe", "\U0010ffff"),
    *("a" * 129, "ü" * 5000, "/" * 300, "a/b//c", "..", "%2e%2e", "'; DROP TABLE", "$Default"),
    *(
        "true",
        "NaN",
        "-1",
        "1e999",
        "0x10",
        "١٢",
        "9" * 400,
        "null",
        "P1DT",
        "-P1D",
        "P" + "9" * 30,
    ),
    *("P10675199DT2H48M5.4775807S", "0001-01-01T00:00:00", "9999-12-31T23:59:59.9999999Z"),
    *("2020-01-01", "Thu, 01 Jan 1970 00:00:00 GMT", "Fri, 31 Dec 9999 23:59:59 GMT"),
    *("orders", "sessions", "news", "1=1", "a = @p AND b LIKE '%' OR " * 9, "(" * 500),
    *("[" * 1020, '{"storage-queue":' * 60, '{"storage-queue": {"metadata": 1}}'),
]
HALVES: Final = ["\ud800", "a\udfffb"]

texts: Final = st.sampled_from(TEXTS) | st.text(max_size=12)
numbers: Final = st.sampled_from(EDGES)


def json_object(entries: dict[str, str]) -> str:
    """Of values that are JSON already."""
    inside = ",".join(f"{json.dumps(name)}:{text}" for name, text in entries.items())
    return f"{{{inside}}}"


def _nested(depth: int, leaf: Any, wrap: Any) -> Any:
    for _ in range(depth):
        leaf = wrap(leaf)
    return leaf


_TYPED: Final = [
    *(Typed(Kind.ULONG, edge) for edge in EDGES if 0 <= edge < 2**64),
    *(Typed(Kind.UINT, edge) for edge in EDGES if 0 <= edge < 2**32),
    *(Typed(Kind.INT, edge) for edge in EDGES if -(2**31) <= edge < 2**31),
    *(Typed(Kind.UBYTE, 255), Typed(Kind.BYTE, -128), Typed(Kind.SHORT, -(2**15))),
    *(Typed(Kind.TIMESTAMP, edge) for edge in (-(2**63), 2**63 - 1, -62_135_596_800_001)),
    *(Typed(Kind.FLOAT, math.nan), Typed(Kind.DECIMAL32, bytes(4)), Typed(Kind.CHAR, "a")),
    *(symbol(""), symbol("a" * 300), Typed(Kind.ARRAY, ()), Typed(Kind.ARRAY, ("a", "b"))),
    *(Typed(Kind.ARRAY, (UUID(int=0),)), Typed(Kind.ARRAY, (2**63 - 1, -(2**63)))),
    Typed(Kind.ARRAY, (Typed(Kind.UINT, 1),)),
]
_DEEP: Final = [
    _nested(30, "leaf", lambda inner: [inner]),
    _nested(30, 1, lambda inner: {"key": inner}),
    _nested(30, 1.0, lambda inner: Described(symbol("x"), inner)),
]
# Values that AMQP can carry.
amqp_values: Final = st.recursive(
    st.none()
    | st.booleans()
    | st.sampled_from([*IN_64_BITS, *FLOATS, *DATES, *TEXTS, *_TYPED, *_DEEP])
    | st.binary(max_size=20)
    | st.sampled_from([UUID(int=0), UUID(int=2**128 - 1)]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(texts | st.sampled_from(IN_64_BITS), inner, max_size=3)
        | inner.map(lambda value: Described(Typed(Kind.ULONG, 0x1370000009), value))
    ),
    max_leaves=5,
)
# Values that a caller in Python can pass.
values: Final = amqp_values | st.sampled_from([*EDGES, *LOCAL_DATES, *HALVES, *SPANS, object()])

_json_leaves: Final = st.sampled_from(
    [
        *(json.dumps(edge) for edge in EDGES),
        *(json.dumps(value) for value in FLOATS),
        *("1e400", "-0", "tru", '"\\ud800"', '"\\u0000"', "[" * 400, '{"a":' * 400, '"', "nul"),
    ]
) | texts.map(json.dumps)
json_texts: Final = st.recursive(
    _json_leaves,
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda items: f"[{','.join(items)}]")
        | st.dictionaries(texts, inner, max_size=3).map(json_object)
    ),
    max_leaves=4,
)


def element(name: str, content: str) -> str:
    return f"<{name}>{content}</{name}>"


xml_texts: Final = (texts | numbers.map(str)).map(escape) | st.sampled_from(
    ["&#0;", "&#xd800;", "&x;", "<a/>", "<!-- -->", "<![CDATA[x]]>", "<a>" * 40]
)
