"""The description of the endpoint is right and complete."""

import ast
import json
import re
from pathlib import Path
from typing import Any

from gateway.app.status.sections import SECTIONS
from gateway.domain.operators.control import Action
from gateway.domain.operators.process import ProcessAction
from gateway.frontends.admin import openapi
from gateway.frontends.admin.openapi import description
from gateway.frontends.admin.page import PATH as PAGE
from gateway.frontends.admin.page import PREFIX as FILES
from gateway.wire.pairgate.control_calls import CONTROL_CALLS

SOURCES = Path(openapi.__file__).parent
CODECS = SOURCES.parents[1] / "wire" / "pairgate"
A_PATH = re.compile(r"/[a-z0-9/.-]*")
NO_PATHS = {PAGE, FILES, "/v1/"}  # the page, and the prefix of all orders


def paths_in(file: Path) -> set[str]:
    """The texts in that file that look like a path, outside of docstrings."""
    tree = ast.parse(file.read_text())
    constants = {
        node.value.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Constant)
    } | {
        each.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Compare)
        for each in ast.walk(node)
        if isinstance(each, ast.Constant)
    }
    return {text for text in constants if isinstance(text, str) and A_PATH.fullmatch(text)}


def test_every_path_in_the_code_is_described() -> None:
    files = [*SOURCES.glob("*.py"), *CODECS.glob("*.py")]
    in_code = {path for file in files for path in paths_in(file)} - NO_PATHS
    described = {
        path.partition("{")[0].rstrip("/") for path in description(CONTROL_CALLS, SECTIONS)["paths"]
    }

    assert in_code >= {"/status", "/events", "/scale"}
    assert described >= {"/v1/drill", "/v1/purge", "/redrive"}
    assert {path for path in in_code if path.rstrip("/") not in described} == set()


def test_every_order_is_a_control_call() -> None:
    actions = [each.value for kind in (Action, ProcessAction) for each in kind]

    assert set(actions) <= {call.name for call in CONTROL_CALLS}


def references(value: Any) -> set[str]:
    if isinstance(value, dict):
        own = {value["$ref"]} if "$ref" in value else set()
        return own.union(*map(references, value.values()))
    return set().union(*map(references, value)) if isinstance(value, list) else set()


def test_every_reference_leads_somewhere_and_every_operation_has_its_own_id() -> None:
    whole = description(CONTROL_CALLS, SECTIONS)
    known = {f"#/components/schemas/{name}" for name in whole["components"]["schemas"]}
    ids = [each["operationId"] for path in whole["paths"].values() for each in path.values()]

    assert references(whole) <= known
    assert len(set(ids)) == len(ids)
    assert json.loads(json.dumps(whole)) == whole
