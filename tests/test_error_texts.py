"""docs/reference/errors.md has each error with its codes, and no text that no client can get."""

import ast
import re
from inspect import getmembers, isclass
from pathlib import Path

from gateway.domain import errors
from gateway.wire.amqp.conditions import condition_of
from gateway.wire.servicebus.errors import ERROR
from gateway.wire.servicebus.errors import build_error as servicebus_error
from gateway.wire.storage_queue.errors import CODE_HEADER, Trace
from gateway.wire.storage_queue.errors import build_error as storage_error
from tests.operator_pages import REFERENCE

GATEWAY = Path(__file__).parents[1] / "gateway"
BY_CODE, BY_SENTENCE = (REFERENCE / "errors.md").read_text().split("## By ")[1:]
CODE_ROW = re.compile(r"^\| `([^`]+)` \| (\d+) `([^`]+)` \| (\d+) `([^`]+)` \|", re.MULTILINE)
SENTENCE_ROW = re.compile(r"^\| `([^`]+)` \|", re.MULTILINE)


def codes_of(error: errors.BrokerError) -> tuple[str, ...]:
    rest, storage = servicebus_error(error), storage_error(error, Trace(request_id="", time=""))
    name, code = rest.headers.get(ERROR), storage.headers.get(CODE_HEADER)
    return condition_of(error), str(rest.status), str(name), str(storage.status), str(code)


def texts_in(file: Path) -> str:
    """The constants of a module but docstrings; those that stand beside each other are one."""
    nodes = list(ast.walk(ast.parse(file.read_text())))
    alone = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    values = (
        node.value for node in nodes if isinstance(node, ast.Constant) and id(node) not in alone
    )
    return "\n".join(
        each.decode("latin-1") if isinstance(each, bytes) else each
        for each in values
        if isinstance(each, str | bytes)
    )


def test_each_error_has_a_row_with_the_codes_that_clients_get() -> None:
    kinds = [
        kind
        for _, kind in getmembers(errors, isclass)
        if issubclass(kind, errors.BrokerError) and kind is not errors.BrokerError
    ]

    rows = CODE_ROW.findall(BY_CODE)
    assert sorted(rows) == sorted({codes_of(kind("failed")) for kind in kinds})


def test_each_text_occurs_in_the_code() -> None:
    written = "\n".join(map(texts_in, GATEWAY.rglob("*.py")))

    sentences = SENTENCE_ROW.findall(BY_SENTENCE)
    assert len(sentences) > 10
    assert [each for each in sentences if each not in written] == []
