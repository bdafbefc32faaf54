"""The corpus and some fresh inputs do no harm. `make fuzz` tries as many as you like."""

import re
import time
from pathlib import Path

import pytest

from tests.fuzz.by_input import CORPUS, LONGEST, ByInput, Lines, as_bytes, as_line, by
from tests.fuzz.connections import CONNECTIONS
from tests.fuzz.documents import DOCUMENTS
from tests.fuzz.relays import RELAYS
from tests.fuzz.served import BROKERS
from tests.fuzz.targets import TARGETS

PAGE = Path(__file__).parents[2] / "benchmarks" / "proof.md"
MOST = 300_000  # bytes of all corpora
FRESH = 200  # inputs for each target
SEED = 27

by_input = pytest.mark.parametrize(
    "target", [*CONNECTIONS, *RELAYS, *BROKERS, *DOCUMENTS], ids=lambda target: target.name
)


@by_input
def test_each_input_of_the_corpus_ends_in_a_result_or_a_documented_error(target: ByInput) -> None:
    assert len(target.corpus) >= 5
    for data in target.corpus:
        target.try_one(data)


@by_input
def test_changed_inputs_end_in_a_result_or_a_documented_error(target: ByInput) -> None:
    assert target.fuzz(SEED, lambda done: done < FRESH, learns=False) == FRESH


@by_input
@pytest.mark.parametrize("begin", [b"[", b"<", b'"', b"'", b"&", b"\\", b"a", b" ", b"="])
def test_long_inputs_are_split_in_time(target: ByInput, begin: bytes) -> None:
    began = time.thread_time()

    assert b"".join(target.split(begin * LONGEST)) == begin * LONGEST

    assert time.thread_time() - began < 2.0


def test_each_file_of_the_corpus_belongs_to_a_target_and_together_they_are_small() -> None:
    files = list(CORPUS.iterdir())

    assert {file.stem for file in files} <= set(TARGETS)
    assert sum(file.stat().st_size for file in files) < MOST


def test_the_page_has_the_sizes_of_the_corpus() -> None:
    _, _, rest = PAGE.read_text().partition("\n## Fuzzing\n")
    text, _, _ = rest.partition("\n## ")
    rows = dict(re.findall(r"^\| `([\w-]+)` \| (\d+) \|", text, re.MULTILINE))
    size = sum(file.stat().st_size for file in CORPUS.iterdir())

    assert rows == {
        target.name: str(len(target.corpus))
        for target in (*CONNECTIONS, *RELAYS, *BROKERS, *DOCUMENTS)
    }
    assert f"{size / 1000:.0f} KB in all" in text


@pytest.mark.parametrize("data", [bytes(range(256)), b"#", b"\\x41", b"a\r\n", b"\xc3\xa9"])
def test_an_input_survives_its_line(data: bytes) -> None:
    line = as_line(data)

    assert line.isprintable()
    assert not line.startswith("#")
    assert as_bytes(line) == data


def crash(data: bytes) -> None:
    if data.count(b"<") > 3:
        raise IndexError("a bug of this test")


def test_a_bug_is_found_and_its_input_is_told() -> None:
    target = ByInput(name="xml", check=crash, split=by(b"<[^>]*>"))

    with pytest.raises(IndexError) as found:
        target.fuzz(SEED, lambda done: done < FRESH)

    (note,) = found.value.__notes__
    data = as_bytes(note.removeprefix("xml: "))
    with pytest.raises(IndexError):
        target.try_one(data)


def test_lines_of_the_gateway_are_new_once() -> None:
    lines, target = Lines(), next(each for each in DOCUMENTS if each.name == "sql")

    assert lines.are_new(lambda: target.try_one(b"a = 1"))
    assert not lines.are_new(lambda: target.try_one(b"a = 1"))
    assert not lines.are_new(lambda: len("none of the gateway"))
