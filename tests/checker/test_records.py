"""Records of a run, to JSON lines and back."""

from math import inf

import attrs
import cattrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.checker.history import (
    Attempted,
    Bounds,
    End,
    EntityStateMoved,
    FaultBegan,
    FaultTarget,
    Way,
)
from gateway.checker.operations import Acked, AuditBegan, Invoked
from gateway.checker.records import KINDS, build, parse
from gateway.domain.failover import State
from gateway.domain.message import AcceptedBy

NUMBERS = st.floats(allow_nan=False)
OF_TYPE = {
    float: NUMBERS,
    float | None: st.none() | NUMBERS,
    Bounds: st.just(Bounds(horizon=5.0, expected_reasons=frozenset({"gone"}))),
}


def records_of(kind):
    fields = {one.name: OF_TYPE[one.type] for one in attrs.fields(kind) if one.type in OF_TYPE}
    return st.builds(kind, **fields)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@given(st.data())
@settings(max_examples=20)
def test_records_survive_the_way_to_lines_and_back(kind, data):
    records = data.draw(st.lists(records_of(kind)))

    assert list(parse(b"".join(build(records)))) == records


@pytest.mark.parametrize(
    ("record", "line"),
    [
        (
            Acked(at=2.5, message_id="1", accepted_by=AcceptedBy.BACKLOG),
            b'{"k": "Acked", "t": 2.5, "message_id": "1", "accepted_by": "backlog"}\n',
        ),
        (
            Invoked(at=1.0, message_id="\n", entity="e", fingerprint="f", expires=9.0),
            b'{"k": "Invoked", "t": 1.0, "message_id": "\\n", "entity": "e", "fingerprint": "f",'
            b' "expires": 9.0}\n',
        ),
        (
            AuditBegan(at=inf, queues=frozenset({"b", "a"})),
            b'{"k": "AuditBegan", "t": "inf", "queues": ["a", "b"]}\n',
        ),
        (
            FaultBegan(
                at=1.0, fault="1", kind="x", target=FaultTarget.HOST, entities=frozenset("a")
            ),
            b'{"k": "FaultBegan", "t": 1.0, "fault": "1", "kind": "x", "target": "host",'
            b' "entities": ["a"]}\n',
        ),
        (
            Attempted(
                at=2.0, process="g", entity="e", message_ids=("1",), way=Way.SYPHON,
                end=End.CUT_OFF, began=1.0,
            ),
            b'{"k": "Attempted", "t": 2.0, "process": "g", "entity": "e", "message_ids": ["1"],'
            b' "way": "syphon", "end": "cut off", "began": 1.0}\n',
        ),
        (
            EntityStateMoved(
                at=1.0, process="g", entity="e", before=State.SECONDARY, after=State.HALF_OPEN
            ),
            b'{"k": "EntityStateMoved", "t": 1.0, "process": "g", "entity": "e", "before":'
            b' "secondary", "after": "half-open"}\n',
        ),
    ],
)  # fmt: skip
def test_a_line_looks_like_this(record, line):
    assert list(build([record])) == [line]
    assert list(parse(line)) == [record]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"x\n", "Expecting value"),
        (b"[]\n", "k must be one of"),
        (b'{"k": "Record", "t": 1}\n', "k must be one of"),
        (b'{"k": "Drained", "t": 1}', "cut off"),
        (b'{"k": "Drained"}\n', "required field missing"),
        (b'{"k": "Drained", "t": 1, "u": 1}\n', "extra fields found"),
        (b'{"k": "Drained", "t": NaN}\n', "invalid value"),
        (b'{"k": "Acked", "t": 1, "message_id": "1", "accepted_by": "left"}\n', "invalid value"),
    ],
)
def test_an_invalid_record_is_refused(line, reason):
    good = b'{"k": "Drained", "t": 1}\n'

    with pytest.raises(ValueError, match=reason) as caught:
        list(parse(good + line))

    assert str(caught.value).startswith("line 2 is not a valid record")
    assert not isinstance(caught.value, cattrs.BaseValidationError)


def test_every_record_has_its_line():
    assert {kind.__name__ for kind in KINDS.values()} == set(KINDS)
    assert all(attrs.has(kind) for kind in KINDS.values())
