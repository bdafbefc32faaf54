"""
A number says where it comes from: each constant of the rooms below that is one has a comment.

The comment stands on its line or in its docstring, or above the constants that follow each other
without an empty line, as codes of one table do. A unit alone gives no reason.
"""

import ast
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Final

GATEWAY: Final = Path(__file__).parents[1] / "gateway"
ROOMS: Final = ("store", "net", "wire", "listening", "extensions", "brokers", "frontends")
UNITS: Final = frozenset(
    ("bytes", "characters", "deliveries", "messages", "milliseconds", "of", "seconds")
)
COMMENT: Final = re.compile(r"#\s*(.*)")


def is_number(node: ast.expr | None) -> bool:
    match node:
        case ast.Constant(value=value):
            return isinstance(value, int | float) and not isinstance(value, bool)
        case ast.UnaryOp(operand=operand):
            return is_number(operand)
        case ast.BinOp(left=left, right=right):
            return is_number(left) or is_number(right)
    return False


def gives_a_reason(comment: str) -> bool:
    return bool(set(re.findall(r"\w+", comment)) - UNITS)


def without_a_reason(source: str) -> Iterator[str]:
    lines = source.splitlines()
    body = ast.parse(source).body
    for node, after in pairwise([*body, ast.Pass()]):
        match node:
            case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation, value=value):
                if "Final" not in ast.unparse(annotation) or not is_number(value):
                    continue
                first = node.lineno - 1
                while first and lines[first - 1].strip():
                    first -= 1
                above = [line for line in lines[first : node.lineno - 1] if line.startswith("#")]
                own = [
                    found[1]
                    for line in lines[node.lineno - 1 : node.end_lineno]
                    if (found := COMMENT.search(line))
                ]
                documented = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
                if not (above or documented or any(map(gives_a_reason, own))):
                    yield name


def test_a_number_says_where_it_comes_from() -> None:
    found = {
        path.relative_to(GATEWAY).as_posix(): names
        for room in ROOMS
        for path in (GATEWAY / room).rglob("*.py")
        if (names := list(without_a_reason(path.read_text())))
    }

    assert found == {}


def test_a_number_without_a_reason_is_found() -> None:
    source = '''
from typing import Final

BARE: Final = 3.0
UNIT: Final = -4 * 1024  # bytes
TEXT: Final = "a text"
TOLD: Final = 1.0  # seconds: a slower answer comes from another continent

# Codes (part 2, 2.7).
OPEN: Final = 0x10
BEGIN: Final = 0x11

DESCRIBED: Final = 5
"""As many as Service Bus allows."""
'''

    assert list(without_a_reason(source)) == ["BARE", "UNIT"]
