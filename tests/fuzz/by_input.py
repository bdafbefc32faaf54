"""
Fuzzing of a function that takes bytes: valid inputs, changed at random along their grammar.

The inputs that a target begins with are its corpus, a text file with one input in each line.
"""

import random
import re
import resource
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

import attrs

CORPUS: Final = Path(__file__).parent / "corpus"
LONGEST: Final = 64 * 1024  # bytes of an input
LONGEST_KEPT: Final = 1200  # bytes of an input that is added to a corpus
MOST_SECONDS: Final = 5.0  # of CPU, for one input
MOST_MEMORY: Final = 96 * 2**20  # bytes by which one input may make this process grow
_TRACED: Final = 8  # one of so many inputs is traced
_NUMBER: Final = re.compile(rb"\d+")
_EDGES: Final = (0, 2**7, 2**15, 2**16, 2**31, 2**32, 2**53, 2**63, 2**64, 10**30)
_NUMBERS: Final = (
    *(str(edge + step).encode() for edge in _EDGES for step in (-1, 0, 1)),
    *(b"9" * 5000, b"1e999", b"-0", b"0x10", b"\xd9\xa1", b"1_0", b"+5", b"00", b"1.5"),
)
_BYTES: Final = (
    b"\0",
    b"\xff",
    b"\x7f",
    b"\x80",
    b"\r",
    b"\n",
    b" ",
    b"\xed\xa0\x80",
    b"\xef\xbb\xbf",
)
_GATEWAY: Final = str(Path(__file__).parents[2] / "gateway")

Rng = random.Random
Split = Callable[[bytes], list[bytes]]


def by(pattern: bytes) -> Split:
    """Splits an input after and before each match; the pieces together are the input."""
    compiled = re.compile(b"(" + pattern + b")")
    return lambda data: [piece for piece in compiled.split(data) if piece]


def change_bytes(data: bytes, rng: Rng) -> bytes:
    """The bytes with up to eight changes, regardless of their meaning."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8))):
        if not changed:
            break
        at = rng.randrange(len(changed))
        match rng.randrange(4):
            case 0:
                changed[at] = rng.choice((0, 0xFF, 0x7F, 0x80, rng.randrange(256)))
            case 1:
                del changed[at : at + rng.choice((1, 4, 100))]
            case 2:
                changed[at:at] = rng.randbytes(rng.choice((1, 4, 100)))
            case _:
                changed[at : at + 4] = rng.choice((b"\xff\xff\xff\xff", b"\0\0\0\0", b"\0\0\0\x08"))
    return bytes(changed)


@attrs.define(eq=False)
class Lines:
    """The lines of the gateway that traced inputs have run."""

    seen: set[tuple[CodeType, int]] = attrs.field(factory=set)

    def are_new(self, check: Callable[[], object]) -> bool:
        """Run `check`; True if it runs a line that no check before has run."""
        before = len(self.seen)
        sys.settrace(self._begin)
        try:
            check()
        finally:
            sys.settrace(None)
        return len(self.seen) > before

    def _begin(self, frame: FrameType, event: str, arg: Any) -> Any:
        return self._note if frame.f_code.co_filename.startswith(_GATEWAY) else None

    def _note(self, frame: FrameType, event: str, arg: Any) -> Any:
        self.seen.add((frame.f_code, frame.f_lineno))
        return self._note


@attrs.frozen(kw_only=True)
class ByInput:
    """
    A target whose `check` takes any bytes, and raises only if the gateway has a bug.

    `split` cuts an input into the pieces of its grammar, `words` are more pieces, and `mend`
    makes an input whole again that must be (lengths, for example).
    """

    name: str
    check: Callable[[bytes], object]
    split: Split
    words: Sequence[bytes] = ()
    mend: Callable[[bytes, Rng], bytes] = lambda data, rng: data

    @property
    def corpus(self) -> list[bytes]:
        lines = (CORPUS / f"{self.name}.txt").read_text("ascii").splitlines()
        return [as_bytes(line) for line in lines if line and not line.startswith("#")]

    def fuzz(
        self, seed: int, go_on: Callable[[int], bool], *, learns: bool = True, keeps: bool = False
    ) -> int:
        """
        Try changed inputs while `go_on(n)`; return how many there were.

        With `learns` an input that runs new lines is changed further; with `keeps` it is also added
        to the corpus.

        Raises:
            Exception: a bug; its note has the input.
        """
        pool, lines, done = self.corpus, Lines(), 0
        for data in pool if learns else ():
            lines.are_new(lambda data=data: self.try_one(data))  # type: ignore[misc]
        while go_on(done):
            rng = Rng(f"{seed} {done}")
            data = self.change(rng.choice(pool), pool, rng)
            if learns and (keeps or done % _TRACED == 0):
                if lines.are_new(lambda data=data: self.try_one(data)):  # type: ignore[misc]
                    pool.append(data)
                    if keeps and len(data) <= LONGEST_KEPT:
                        self._keep(data)
            else:
                self.try_one(data)
            done += 1
        return done

    def try_one(self, data: bytes) -> None:
        """
        Check one input.

        Raises:
            Exception: a bug; its note has the input. AssertionError: it took too long or too much.
        """
        began, size = time.thread_time(), resident()
        try:
            self.check(data)
            took, grown = time.thread_time() - began, resident() - size
            assert took < MOST_SECONDS, f"{took:.1f} s of CPU"
            assert grown < MOST_MEMORY, f"{grown / 2**20:.0f} MiB of memory"
        except BaseException as error:
            error.add_note(f"{self.name}: {as_line(data[:LONGEST])}")
            raise

    def change(self, data: bytes, pool: Sequence[bytes], rng: Rng) -> bytes:
        """The input with one to four changes."""
        for _ in range(rng.choice((1, 1, 2, 4))):
            data = self._changed(data, pool, rng)[:LONGEST]
        return self.mend(data, rng)

    def _changed(self, data: bytes, pool: Sequence[bytes], rng: Rng) -> bytes:
        pieces = self.split(data) or [b""]
        at, other = rng.randrange(len(pieces)), rng.randrange(len(pieces))
        match rng.randrange(10):
            case 0:
                return change_bytes(data, rng)
            case 1:
                pieces[at] = change_bytes(pieces[at], rng)
            case 2:
                del pieces[at : at + rng.choice((1, 1, 3))]
            case 3:
                end = at + rng.choice((1, 2, 5))
                pieces[at:at] = pieces[at:end] * rng.choice((1, 2, 50, 2000))
            case 4:
                pieces[at], pieces[other] = pieces[other], pieces[at]
            case 5:  # pieces of another input come in between
                more = self.split(rng.choice(pool)) or [b""]
                begin = rng.randrange(len(more))
                pieces[at:at] = more[begin : begin + rng.choice((1, 3, 10))]
            case 6:
                pieces[at] = rng.choice(self.words or _BYTES)
            case 7:
                pieces.insert(at, rng.choice(_BYTES))
            case 8:
                return _with_number(data, rng)
            case _:
                del pieces[at:]
        return b"".join(pieces)

    def _keep(self, data: bytes) -> None:
        with (CORPUS / f"{self.name}.txt").open("a", encoding="ascii") as file:
            file.write(f"{as_line(data)}\n")


def as_line(data: bytes) -> str:
    """The input as a line of printable ASCII."""
    text = data.decode("latin-1").encode("unicode_escape").decode("ascii")
    return text.replace("#", "\\x23", 1) if text.startswith("#") else text


def as_bytes(line: str) -> bytes:
    return line.encode("ascii").decode("unicode_escape").encode("latin-1")


def _with_number(data: bytes, rng: Rng) -> bytes:
    numbers = list(_NUMBER.finditer(data))
    if not numbers:
        return data + rng.choice(_NUMBERS)
    found = rng.choice(numbers)
    return data[: found.start()] + rng.choice(_NUMBERS) + data[found.end() :]


def resident() -> int:
    """Bytes of this process in memory, at most so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
