"""The files that `check` looks at before a start."""

from pathlib import Path

from gateway.app.operations.findings import Findings, Grade
from gateway.app.starting import check_files
from gateway.config.file import parse

CONFIG = """
take_over = "var/take-over.sock"

[namespaces.here]
url = "memory:"
"""


def found(folder: Path) -> list[tuple[str, Grade]]:
    findings = Findings()
    check_files(parse(CONFIG, source="test", folder=folder, environ={}).config, findings)
    return [(each.subject, each.grade) for each in findings.items]


def test_a_folder_for_the_take_over_socket_that_can_not_be_is_found(tmp_path: Path) -> None:
    assert found(tmp_path) == []

    (tmp_path / "var").write_text("a file")

    assert found(tmp_path) == [("take_over", Grade.BAD)]
