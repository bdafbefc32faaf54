"""
Docstrings, comments and names of tests avoid headless sentences and the old private words.

A sentence names its subject first: no "What was taken ...", no "How many ..." and no "It holds
...". A docstring doesn't count its subject: "A connection ...", not "One connection ...". One thing
has one word, which is in docs/reference/glossary.md. The name of a test is the rule as a sentence,
which begins with its subject, too.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("gateway", "tests", "benchmarks", "examples")

# At the beginning of a docstring or comment. A predicate's begins with "True if".
HEADLESS = re.compile(
    r"(?:How|Its?|That|Their|Them|They|Those|What|Whatever|Whether|Which|Who|Whoever|Whom|Whose)\b"
)

# At the beginning of a docstring, which names its subject without counting.
COUNTED = re.compile(r"One\b")

# At the beginning of the name of a test.
HEADLESS_TEST = re.compile(
    r"def (test_(?:how|its?|that|there|they|this"
    r"|what|whatever|whether|which|who|whoever|whom|whose)(?:_\w*)?)\("
)

PHRASES = re.compile(r"\b(?:anew|of late|oftener|whoever|such a one)\b", re.IGNORECASE)

# Private words of old that have no ordinary sense in these texts.
OLD_WORDS = re.compile(
    r"\b(?:cargo|conduct|doorbells?|errands?|fanouts?|handouts?|holdings|legs?|parkable"
    r"|rulings?|standings?|stints?|surroundings|tickets?)\b",
    re.IGNORECASE,
)

CODE = re.compile(r"`[^`]*`")

# Finds each beginning of a docstring or comment that could be refused, and others.
BEGINNING = re.compile(rf"""(?:["'#]|^)\s*(?:{HEADLESS.pattern}|{COUNTED.pattern})""", re.MULTILINE)


def docstrings(source: str) -> Iterator[tuple[int, str]]:
    """Yield the docstrings, also the strings below an attribute, which document it."""
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else ():
            match statement:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    yield statement.lineno, text


def comments(source: str) -> Iterator[tuple[int, str]]:
    """Each comment is one text, even of several lines, so that no phrase is cut."""
    lines: list[str] = []
    last = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        if lines and token.start[0] != last + 1:
            yield last, " ".join(lines)
            lines = []
        lines.append(token.string.lstrip("# "))
        last = token.start[0]
    if lines:
        yield last, " ".join(lines)


def complaints(source: str) -> Iterator[tuple[int, str]]:
    documented = tuple(docstrings(source))
    for line, text in documented:
        if found := COUNTED.match(text.strip()):
            yield line, found[0]
    for line, text in (*documented, *comments(source)):
        if found := HEADLESS.match(text.strip()):
            yield line, found[0]
        plain = CODE.sub("", " ".join(text.split()))
        for pattern in (PHRASES, OLD_WORDS):
            yield from ((line, found) for found in pattern.findall(plain))


def is_suspicious(source: str) -> bool:
    """
    Return False only if the source has no complaint, which takes a tenth of the time of
    `complaints`.
    """
    words = " ".join(source.replace("#", " ").split())
    return any((BEGINNING.search(source), PHRASES.search(words), OLD_WORDS.search(words)))


def test_docstrings_and_comments_are_plain_english() -> None:
    found = [
        (str(path.relative_to(ROOT)), line, word)
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
        if is_suspicious(source := path.read_text())
        for line, word in complaints(source)
    ]

    assert found == []


def test_the_name_of_a_test_begins_with_its_subject() -> None:
    found = {
        str(path.relative_to(ROOT)): names
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
        if (names := HEADLESS_TEST.findall(path.read_text()))
    }

    assert found == {}


@pytest.mark.parametrize(
    "name", ["test_what_is_late_goes", "test_whoever_asks", "test_how", "test_it_is_late"]
)
def test_a_headless_name_of_a_test_is_found(name: str) -> None:
    assert HEADLESS_TEST.findall(f"async def {name}() -> None: ...") == [name]
    assert HEADLESS_TEST.findall("def test_whole_frames_are_read() -> None: ...") == []


@pytest.mark.parametrize(
    ("source", "word"),
    [
        ('"""What a queue holds."""', "What"),
        ('def full():\n    """\n    Whether it is full.\n    """', "Whether"),
        ('LIMIT = 1\n"""Whoever asks gets no more."""', "Whoever"),
        ('class Queue:\n    """How many messages it has."""', "How"),
        ("full = 1  # Whether it is full", "Whether"),
        ('class Queue:\n    """One queue."""', "One"),
        ('LIMIT = 1\n"""\nOne by one.\n"""', "One"),
        ("class Queue:\n    # It holds messages.\n    size = 1", "It"),
        ("x = 1  # read anew", "anew"),
        ("# the largest of\n# late", "of late"),
        ('"""The errands of a queue."""', "errands"),
    ],
)
def test_a_headless_sentence_or_an_old_word_is_found(source: str, word: str) -> None:
    assert is_suspicious(source)
    assert word in [found for _, found in complaints(source)]


@pytest.mark.parametrize(
    "source",
    [
        '"""True if the queue is full, whether or not it is locked."""',
        '"""The file\'s key is `standings`."""',
        "x = 1  # what isn't late",
        "x = 1  # One question for the depth",
    ],
)
def test_an_ordinary_sentence_is_no_complaint(source: str) -> None:
    assert list(complaints(source)) == []
