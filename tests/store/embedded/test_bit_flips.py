"""
A single flipped bit, in any kind of page, never loses or changes a message unnoticed.

The store refuses to start, stops, puts a message aside and says so, or says that the state of a
session is damaged; or nothing has changed for anybody.
"""

import random
from collections import Counter

import pytest

from tests.harness.crash_disk import write_image
from tests.store.embedded.crash_states import FILES
from tests.store.embedded.rotten import by_kind, flipped, judge, look, places, stores

FLIPS = 10  # for each kind of page
GOOD = {"refused", "stopped", "told", "harmless"}


@pytest.mark.slow
def test_a_flipped_bit_is_never_silent(folder):
    verdicts: dict[str, Counter[str]] = {}
    rng = random.Random(1)
    for name, image in stores(folder).items():
        home = folder / name
        home.mkdir()
        write_image(home, image, FILES)
        _, whole = look(home)
        write_image(home, image, FILES)
        _, whole = look(home, whole.deferred)
        write_image(home, image, FILES)
        for kind, found in by_kind(places(home, image)).items():
            if (name == "killed") != (kind.startswith("log") or kind == "mark"):
                continue  # of the log and the mark once, and of the pages once
            counts = verdicts[kind] = Counter()
            for _ in range(FLIPS):
                write_image(home, flipped(image, rng.choice(found), rng), FILES)
                counts[judge(whole, *look(home, whole.deferred))] += 1
    for kind, counts in verdicts.items():
        print(f"{kind}: {dict(counts)}")  # noqa: T201 figures, for -rP

    bad = {kind: counts.keys() - GOOD for kind, counts in verdicts.items()}
    assert {kind: words for kind, words in bad.items() if words} == {}
    assert len(verdicts) >= 25
    assert sum((counts for counts in verdicts.values()), Counter())["refused"] > 30
