"""A limit that a test needs smaller is an argument with a default: no test replaces a constant."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parent
CONSTANT = re.compile(r"(?:.*\.)?_?[A-Z][A-Z0-9_]+")

# Constants that a test may replace, by the file of the test.
MAY_REPLACE = {
    "app/test_process.py": {"CDLL"},  # a class of `ctypes`: a system without the call
    "brokers/amqp/test_rabbitmq.py": {"PASSWORD"},  # of the test's own broker: a wrong password
    # Two guards that are missing, as they once were: the test finds that bug again.
    "simulation/test_finding.py": {"PAUSE", "SHORTEST_LOCK"},
}


def replaced(source: str) -> Iterator[str]:
    """The constants that these tests replace, with `monkeypatch.setattr` or `delattr`."""
    if "setattr" not in source and "delattr" not in source:
        return  # most files: to parse them takes most of the time
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(func=ast.Attribute(attr="setattr" | "delattr"), args=arguments):
                for each in arguments[:2]:
                    if isinstance(each, ast.Constant) and CONSTANT.fullmatch(str(each.value)):
                        yield str(each.value).rpartition(".")[2]


def test_no_test_replaces_a_constant_but_those_with_a_reason() -> None:
    found = {
        str(path.relative_to(TESTS)): names
        for path in TESTS.rglob("*.py")
        if (names := set(replaced(path.read_text())))
    }

    assert found == MAY_REPLACE


def test_each_way_to_replace_a_constant_is_found() -> None:
    source = """
monkeypatch.setattr(module, "MAX_SUSPENDED", 3)
monkeypatch.setattr("gateway.wire.azure_blob.PAGE", 2)
patch.setattr(module, "_WORK", 1.0, raising=False)
monkeypatch.setattr(module, "function", stub)
monkeypatch.setattr(Leases, "settle", stub)
"""

    assert list(replaced(source)) == ["MAX_SUSPENDED", "PAGE", "_WORK"]
