"""
Public names are made of plain words and of those in docs/reference/glossary.md; the old private
words are nowhere.

Names are read from the sources: events and their fields, metrics and labels, headers and
properties, keys of the configuration and of the status. A new word is either in the glossary, which
explains it, or among the plain words below.
"""

import ast
import re
import tomllib
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final, get_args

import attrs
import pytest

from gateway.app.status.sections import SECTIONS
from gateway.domain.status.figures import Metric, Tag
from gateway.domain.status.process import Status
from gateway.domain.status.sections import Sections
from tests.config.shipped import COMMENTED_OUT, EVERY_OPTION

ROOT: Final = Path(__file__).parents[1]
GATEWAY: Final = ROOT / "gateway"
EVENTS: Final = sorted(
    [*GATEWAY.glob("domain/events/*.py"), *GATEWAY.glob("extensions/*/events.py")]
)
GLOSSARY: Final = (ROOT / "docs" / "reference" / "glossary.md").read_text()
TERM = re.compile(r"^\| (?!word |---)([^|]+) \|", re.MULTILINE)
WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")

# Words that an engineer knows without a glossary.
PLAIN_TEXT: Final = """
    above accept accounts active address admin after age alarm alive allow amqp announce anonymous
    answer argument arrival at attach attempt audit autoscale back before began behind bill bind
    body budget busy byte ca call cap cause certain certificate change channel client close
    collect collection complete compression configuration connect connection consume container
    cooldown crash create damage day decrease delay deliver depth description detect development
    dialect done doubt doubtful drop durable duration empty enable end endpoint env error event
    encrypt every exec expire fail fetch figure first for format found frame free gateway
    gone good group handle handshake head here host idle in inflight item jitter keep kept
    kid kill kind label last late left legacy level lifetime line link listen live load log
    long longest loop lost mac made management match max memory metric min miss missing mode
    most name need next not now number off oldest on open operation origin out pairgate
    parallel partial password pause pending per pid pin ping poll port possibly problem progress
    protocol publish python quota ready reason receive redriven refuse regain reload remedy remove
    renew repeat replace request require rescan rest restart retry return right role rule running
    save scale second seen sender sent sequence server share short shortest since size slow start
    stop storage string success suspect system taken target task text threshold throttle time
    tier timeout tls to too total traceback ttl tune twice unknown unordered unreachable unreadable
    unsettled until untouched url usable v wait wake want was while within write x bound commit
    count destination expiry export file lag ratio sample service setting type
    authority chain discovery instance scope secret tenant add algorithm audience clock read
    refresh result skew subject unavailable outage deadline detail restore page reach remote serve
    served version header user remembered
"""
PLAIN: Final = frozenset(PLAIN_TEXT.split())

# Old public names, and the present ones.
OLD_NAMES: Final = {
    "standing_changed": "entity_state_changed",
    "syphon_held": "syphon_backed_off",
    "claim_held": "claim_backing_off",
    "triggers_held_up": "triggers_delayed",
    "X-Pairgate-Leg": "X-Pairgate-Accepted-By",
    "pairgate_leg": "pairgate_accepted_by",
    "pairgate_listener_held_messages": "pairgate_listener_locked_messages",
    "pairgate_spool_room_bytes": "pairgate_spool_free_bytes",
    "max_held": "max_locked",
    "max_held_bytes": "max_unsettled_bytes",
    "look_every": "poll_every",
    "limits.storage.hold": "limits.storage.retry_for",
}

# The words of an earlier, private vocabulary, but those with a usual sense (ring, site, pace).
OLD_TEXT: Final = """
    bell bells cargo caution conduct crew crews desk desks doorbell doorbells errand errands
    handout holdings intake lab leg legs ruling rulings shelf shelves staffing standing
    standings station stations stint stints surroundings swarm tallies tally ticket tickets yard
"""
OLD_WORDS: Final = frozenset(OLD_TEXT.split())

# Files in which such a word has its usual sense, or must be named.
USUAL_SENSE: Final[dict[str, dict[str, str]]] = {
    "benchmarks/proof.md": {"swarm": "swarm testing is the field's name"},
    "gateway/pairing/state_file.py": {"standings": "a key of version 1 of the state file"},
    "tests/pairing/test_state_file.py": {"standings": "a key of version 1 of the state file"},
    "tests/simulation/seeds.py": {"swarm": "swarm testing is the field's name"},
    "tests/test_english.py": dict.fromkeys(OLD_WORDS, "looks for these words"),
    "tests/test_names.py": dict.fromkeys(OLD_WORDS, "looks for these words"),
}
SUFFIXES: Final = frozenset({".py", ".md", ".toml", ".js", ".cs", ".java", ".go", ".html", ".sh"})


def words(name: str) -> list[str]:
    return [word.lower() for word in WORD.findall(name)]


def glossary_words() -> set[str]:
    return {word for term in TERM.findall(GLOSSARY) for word in words(term)}


def forms(word: str) -> set[str]:
    """The word, its plural, and its participles."""
    stem = word.removesuffix("e")
    stems = {stem, f"{word}{word[-1]}"}
    verbs = {f"{each}{ending}" for each in stems for ending in ("ed", "ing")}
    return {word, f"{word}s", f"{word}es", f"{word.removesuffix('y')}ies", *verbs}


def known_words() -> set[str]:
    return {form for word in PLAIN | glossary_words() for form in forms(word)}


def event_names(source: str | None = None) -> Iterator[str]:
    """Classes of events and their fields: of `source`, or of all modules of events."""
    sources = [source] if source else [path.read_text() for path in EVENTS]
    for node in (node for text in sources for node in ast.parse(text).body):
        if isinstance(node, ast.ClassDef):
            yield node.name
            yield from (
                field.target.id
                for field in node.body
                if isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and "ClassVar" not in ast.unparse(field.annotation)
            )


def texts(path: Path) -> Iterator[str]:
    """The constants of a module, and the constant parts of its f-strings."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def metric_names() -> Iterator[str]:
    """Names of metrics and of labels, as the fields of the status have them."""

    def declared(kind: Any) -> Iterator[str]:
        for field in attrs.fields(kind) if attrs.has(kind) else ():
            for key, value in field.metadata.items():
                if isinstance(value, Metric):
                    yield from (value.name.replace("{place}", ""), *value.labels)
                elif key in {Tag.LABEL, Tag.KEYED, Tag.PLACE}:
                    yield value
            yield from declared(field.type)
        for part in get_args(kind):
            yield from declared(part)

    for kind in (Status, *(each.kind for each in SECTIONS)):
        yield from declared(kind)


@cache
def header_names() -> frozenset[str]:
    """Names of headers and of application properties."""
    return frozenset(
        text
        for path in GATEWAY.rglob("*.py")
        for text in texts(path)
        if re.fullmatch(r"x-pairgate-[a-z-]*", text, re.IGNORECASE)
    )


def option_names() -> Iterator[str]:
    def keys(value: Any, inside: str = "") -> Iterator[str]:
        if isinstance(value, list):
            for each in value:
                yield from keys(each, inside)
        elif isinstance(value, dict):
            for key, each in value.items():
                if inside != "namespaces":  # its keys are names of the user's
                    yield key
                yield from keys(each, key)

    yield from keys(tomllib.loads(COMMENTED_OUT.sub("", EVERY_OPTION)))


def status_names() -> Iterator[str]:
    """Keys of the status, and the ones that its JSON adds."""

    def fields(kind: Any) -> Iterator[str]:
        if isinstance(kind, type) and attrs.has(kind):
            for field in attrs.fields(attrs.resolve_types(kind)):
                if field.type != Sections:  # no key of the JSON
                    yield field.name
                    yield from fields(field.type)
        for part in get_args(kind):
            yield from fields(part)

    yield from fields(Status)
    for section in SECTIONS:
        yield from section.path.split(".")
        yield from fields(section.kind)
    for node in ast.walk(ast.parse((GATEWAY / "wire" / "pairgate" / "status.py").read_text())):
        if isinstance(node, ast.Dict):
            yield from (key.value for key in node.keys if isinstance(key, ast.Constant))


NAMES: Final = {
    "events": event_names,
    "metrics": metric_names,
    "headers": header_names,
    "options": option_names,
    "status": status_names,
}


def unknown(names: Iterable[str]) -> dict[str, list[str]]:
    """The names with unexplained words, and these words."""
    known = known_words()
    found = {name: [word for word in words(name) if word not in known] for name in names}
    return {name: strange for name, strange in found.items() if strange}


@cache
def files() -> dict[str, str]:
    """All texts but the changelog and old results, which keep the words of their time."""
    folders = ("gateway", "docs", "conf", "tests", "examples", "benchmarks")
    found = {name: (ROOT / name).read_text() for name in ("README.md", "CONTRIBUTING.md")}
    for path in sorted(path for folder in folders for path in (ROOT / folder).rglob("*")):
        name = path.relative_to(ROOT).as_posix()
        if path.suffix in SUFFIXES and not name.startswith("benchmarks/results/"):
            found[name] = path.read_text()
    return found


def old_words(name: str, text: str) -> set[str]:
    return ({word.lower() for word in WORD.findall(text)} & OLD_WORDS) - set(
        USUAL_SENSE.get(name, {})
    )


@pytest.mark.parametrize("kind", NAMES)
def test_public_names_are_made_of_plain_words_and_of_the_glossarys(kind: str) -> None:
    assert unknown(NAMES[kind]()) == {}


def test_an_event_with_a_private_word_is_found() -> None:
    source = "class SyphonHummed(Event):\n    queue: str\n    murk: int"

    assert unknown(event_names(source)) == {"SyphonHummed": ["hummed"], "murk": ["murk"]}


def test_no_word_is_called_plain_that_no_name_needs() -> None:
    used = {word for names in NAMES.values() for name in names() for word in words(name)}

    assert {word for word in PLAIN if not forms(word) & used} == set()
    assert PLAIN & (OLD_WORDS | glossary_words()) == set()


def old_names(text: str) -> set[str]:
    bounds = r"(?<![\w-]){}(?![\w-])"
    return {
        name
        for name in OLD_NAMES
        if name in text and re.search(bounds.format(re.escape(name)), text)
    }


def test_no_old_name_is_left() -> None:
    found = {name: old_names(text) for name, text in files().items()}
    assert found.pop("tests/test_names.py") == set(OLD_NAMES)

    assert {name: names for name, names in found.items() if names} == {}


def test_no_old_word_is_left() -> None:
    found = {name: old_words(name, text) for name, text in files().items()}

    assert {name: left for name, left in found.items() if left} == {}


def test_each_usual_sense_is_still_met() -> None:
    for name, senses in USUAL_SENSE.items():
        if name not in {"tests/test_english.py", "tests/test_names.py"}:
            met = {word.lower() for word in WORD.findall(files()[name])}
            assert set(senses) <= met, name
