"""
Methods have the field's verbs: acquire and release, receive, notify, poll, record, pop.

The verbs below say too little: a search for `take` found a hall of 44 doors. No class may get a
further method that begins with one of them, and a number falls with each that is renamed.
"""

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Final

GATEWAY: Final = Path(__file__).parents[1] / "gateway"

# The number of functions and methods whose name begins with the verb, private ones too. AMQP's own
# performative `end` is among the last.
MOST: Final = {
    "take": 0,
    "end": 18,
    "note": 4,
    "tell": 0,
    "told": 2,
    "look": 5,
    "given": 2,
    "part": 0,
    "rest": 1,
    "goes": 0,
    "said": 0,
    "found": 1,
}

# The first word of the name of each function.
FIRST_WORD: Final = re.compile(r"^[ ]*(?:async )?def _*([^\W_]+)", re.MULTILINE)


def counted(sources: Iterable[str]) -> dict[str, int]:
    found = Counter(verb for source in sources for verb in FIRST_WORD.findall(source))
    return {verb: found[verb] for verb in MOST}


def test_no_further_method_has_a_private_verb() -> None:
    assert counted(path.read_text() for path in GATEWAY.rglob("*.py")) == MOST


def test_a_private_verb_is_found_in_methods_and_functions() -> None:
    source = "class Queue:\n    def _take_one(self): ...\nasync def take(): ...\ndef taken(): ..."

    assert counted([source]) == {**dict.fromkeys(MOST, 0), "take": 2}
