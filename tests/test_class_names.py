"""
The name of a class is the name of one thing: a reader who searches for it finds one class.

The names below are of several classes, in packages that don't know each other. No name may be
added, and a name whose classes have become one is deleted here.
"""

import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]

# The number of classes that still have the name.
SHARED_TEXT: Final = """
    Address 2
    Arrivals 2
    AuditFailed 2
    ByAge 2
    ByDepth 2
    Call 2
    Channel 2
    ConnectionClosed 2
    ConnectionOpened 2
    DeadLettered 2
    DeleteQueue 2
    Delivered 2
    Disposition 2
    Done 3
    Drains 2
    Ends 2
    Entry 2
    Exchange 2
    Failed 2
    Held 2
    InFlight 2
    Incoming 2
    Kind 2
    Link 2
    ListQueues 2
    ListRules 2
    Messages 2
    Most 2
    Namespace 2
    Numbers 2
    Opened 2
    Opening 2
    PeekMessages 2
    Request 2
    Role 2
    Rules 2
    Sample 2
    Sessions 2
    Silence 2
    State 2
    Table 2
    Ways 2
    Workload 2
"""
SHARED: Final = {
    name: int(classes)
    for name, classes in (line.split() for line in SHARED_TEXT.strip().splitlines())
}

CLASS: Final = re.compile(r"^[ ]*class _*(\w+)[(:]", re.MULTILINE)


def shared(sources: Iterable[str]) -> dict[str, int]:
    """The names that several classes have, whether private or not, and the number of classes."""
    classes: dict[str, int] = defaultdict(int)
    for source in sources:
        for name in CLASS.findall(source):
            classes[name] += 1
    return {name: number for name, number in sorted(classes.items()) if number > 1}


def test_no_further_class_has_the_name_of_another() -> None:
    assert shared(path.read_text() for path in (ROOT / "gateway").rglob("*.py")) == SHARED


def test_a_private_class_with_the_name_of_another_is_found() -> None:
    assert shared(["class Row: ...", "def rows():\n    class _Row: ...", "class Rows: ..."]) == {
        "Row": 2
    }
