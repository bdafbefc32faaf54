"""
Finds the targets of an order that no entity is known for. A misspelt name would otherwise be pinned
or paused without any effect, while its operator believes the contrary.
"""

import difflib
import heapq
from collections.abc import Collection, Iterable, Sequence
from itertools import takewhile
from typing import Final

from gateway.domain.operators.control import EVERYTHING, matches

NAMED: Final = 3  # unknown targets with a suggestion; the others are counted
# Names that a target is compared with thoroughly, those with the most in common at both ends:
# difflib needs a tenth of a millisecond for each, and the process waits meanwhile.
COMPARED: Final = 50


def unknown_among(targets: Sequence[str], known: Collection[str]) -> list[str]:
    """The targets that match none of the known names. `*` alone is everything, and never one."""
    keys = {each.lower() for each in known}
    return [
        target
        for target in targets
        if target.strip(EVERYTHING)
        and target.lower() not in keys
        and not (EVERYTHING in target and any(matches(target, key) for key in keys))
    ]


def refusal_of(unknown: Sequence[str], known: Iterable[str], doubt: str = "") -> str:
    """
    The sentence that refuses an order with these unknown targets. `doubt`: why the primary couldn't
    be asked for them.
    """
    names = sorted(set(known))
    texts = [f"{target!r:.100}{_hint(target, names)}" for target in unknown[:NAMED]]
    if len(unknown) > NAMED:
        texts.append(f"{len(unknown) - NAMED} more")
    asked = f" (the primary can't be asked: {doubt})" if doubt else ""
    found = f"targets: nobody knows {'; '.join(texts)}{asked}"
    end = "" if found.endswith("?") else "."
    return f'{found}{end} --force ("force": true) gives the order all the same'


def _hint(target: str, names: Sequence[str]) -> str:
    text = target.lower().replace(EVERYTHING, "")
    similar = heapq.nlargest(COMPARED, names, key=lambda name: _in_common(text, name.lower()))
    by_key = {name.lower(): name for name in similar}
    near = difflib.get_close_matches(text, by_key, n=2)
    return f": did you mean {' or '.join(by_key[each] for each in near)}?" if near else ""


def _in_common(one: str, other: str) -> int:
    """The number of equal letters at the beginning and at the end."""
    return sum(
        1
        for pairs in (zip(one, other, strict=False), zip(one[::-1], other[::-1], strict=False))
        for _ in takewhile(lambda pair: pair[0] == pair[1], pairs)
    )
