"""Each test of this folder says which section of the specification it is about."""

import ast
import re
from pathlib import Path

SECTION = re.compile(r"\b[1235]\.\d(\.\d+)*\b")


def test_each_test_cites_a_section() -> None:
    without, cited = [], set()
    for path in Path(__file__).parent.glob("test_*.py"):
        if path == Path(__file__):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                found = SECTION.search(ast.get_docstring(node) or "")
                if found is None:
                    without.append(node.name)
                else:
                    cited.add(found.group())

    assert without == []
    assert len(cited) > 30
