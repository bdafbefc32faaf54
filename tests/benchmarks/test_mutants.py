"""The mutants of a source, and the verdict on those that survive."""

import ast
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.mutants.changes import mutants
from benchmarks.mutants.explained import Result, explanations, share, table, unexplained
from benchmarks.mutants.trial import Trace


def changed(source):
    return [mutant.text for mutant in mutants(textwrap.dedent(source), "source.py")]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("a = b < c", ["a = b <= c"]),
        ("a = b == c", ["a = b != c"]),
        ("a = b and c", ["a = b or c"]),
        ("a = not b", ["a = b"]),
        ("a = b + 1", ["a = b - 1", "a = b + 2"]),
        ("a = True", ["a = False"]),
        ("a = 'one'", ["a = 'oneX'"]),
        ("a = min(b)", ["a = max(b)"]),
        ("a = b[1:]", ["a = b[:]", "a = b[2:]"]),
        ("a = b if c < d else e", ["a = b if not c < d else e", "a = b if c <= d else e"]),
        (
            "a = [b for b in c if b is d]",
            ["a = [b for b in c if not b is d]", "a = [b for b in c if b is not d]"],
        ),
        ("b.a = c", ["without b.a = c"]),
        ("a += b", ["without a += b", "a -= b"]),
        ("change(b)", ["without change(b)"]),
        ("raise b", ["without raise b"]),
        ("a = change(b, c=d)", ["a = change(b)"]),
    ],
)
def test_each_change_is_small(source, expected):
    assert changed(source) == expected


def test_a_table_forgets_an_entry_or_mixes_two_up():
    assert changed("a = {b: c, d: e}") == [
        "a = {d: e}",
        "a = {b: e, d: e}",
        "a = {b: c}",
        "a = {b: c, d: c}",
    ]


@pytest.mark.parametrize(
    "source",
    [
        '"""What it is."""',
        "from a import b",
        "a: b | c",
        "a = 'a text for people'",
        "a = f'{b}'",
        "a = Made(b=c)",
        "a: b = attrs.field(init=False)",
        "@decorated(b=1)\ndef a() -> None: return",
    ],
)
def test_code_that_no_test_can_feel_is_left_alone(source):
    assert changed(source) == []


def test_code_that_a_call_runs_is_told_from_code_that_an_import_runs():
    found = list(
        mutants("class A:\n    b = 1\n    def c(self, d=1):\n        return d < 1\n", "a.py")
    )

    assert {(one.function, one.body) for one in found} == {
        ("A", False),
        ("A.c", False),
        ("A.c", True),
    }


def test_a_mutant_is_code_and_the_others_are_not_in_it():
    found = {}
    for mutant in mutants("a = 1\nb = 2\n", "a.py"):
        names = {}
        exec(mutant.code, names)
        found[mutant.text] = (names["a"], names["b"])

    assert found == {"a = 2": (2, 2), "b = 3": (1, 3)}


MUTANT = next(mutants("a = 1", "a.py"))


def test_code_outside_of_functions_is_tried_by_files_that_name_its_module_or_package(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    texts = {
        "names.py": "from gateway.pairing.syphon.batch_window import BatchWindow",
        "walks.py": "iter_modules(syphon.__path__)",
        "neither.py": "from gateway.pairing.syphon.drain import Drain",
        "elsewhere.py": "iter_modules(domain.__path__)",
    }
    for name, text in texts.items():
        Path(name).write_text(text)
    seconds = {f"{name}::test": 1.0 for name in texts}
    trace = Trace(state="", lines={}, seconds=seconds, failed=frozenset())

    chosen = trace.chosen(
        MUTANT, str(Path.cwd() / "gateway/pairing/syphon/batch_window.py"), ["walks"], 10.0
    )

    assert chosen == ["walks.py::test", "names.py::test"]


SURVIVOR = Result(module="domain/a", mutant=MUTANT, ended="0")
KILLED = Result(module="domain/a", mutant=MUTANT, ended="1")


def test_a_survivor_needs_an_explanation():
    told = list(unexplained([SURVIVOR, KILLED], {}))

    assert len(told) == 1
    assert "+ a = 2" in told[0]
    assert list(unexplained([SURVIVOR], {SURVIVOR.name: "why"})) == []


def test_an_explanation_needs_a_survivor():
    assert len(list(unexplained([KILLED], {KILLED.name: "why"}))) == 1


def names_in(tree: ast.AST, outer: str = "") -> Iterator[str]:
    """The functions and classes of a module, by the names that mutants have."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield outer + node.name
            yield from names_in(node, f"{outer}{node.name}.")


def test_an_explained_survivor_is_in_a_function_that_exists():
    root = Path(__file__).parents[2]
    named = {(module, name) for module, name, _ in explanations(root / "tests/mutants.toml")}
    there = {
        (module, name)
        for module in {module for module, _ in named}
        for tree in [ast.parse((root / f"gateway/{module}.py").read_text())]
        for name in ["<module>", *names_in(tree)]
    }

    assert named - there == set()


def test_a_mutant_that_no_test_runs_survives():
    assert Result(module="domain/a", mutant=MUTANT, ended="untested").survived


@pytest.mark.parametrize("ended", ["1", "2", "endless", "died"])
def test_each_way_to_stop_the_tests_is_noticed(ended):
    assert not Result(module="domain/a", mutant=MUTANT, ended=ended).survived


def test_the_table_has_each_module_and_the_sum():
    results = [SURVIVOR, KILLED, KILLED, KILLED]

    assert share(results) == 0.75
    assert list(table(results))[2:] == [
        "| domain/a | 4 | 3 | 1 | 75.0 |",
        "| all | 4 | 3 | 1 | 75.0 |",
    ]


def test_explanations_are_read_by_module_function_and_code(tmp_path):
    file = tmp_path / "mutants.toml"
    file.write_text(
        "[[survivor]]\nmodule = 'domain/a'\nfunction = 'f'\ncodes = ['a', 'b']\nwhy = 'the same'\n"
    )

    assert explanations(file) == {
        ("domain/a", "f", "a"): "the same",
        ("domain/a", "f", "b"): "the same",
    }
