"""`pairgate check` and `provision`: check the configured entities, or create them."""

import sys

from rich.text import Text

from gateway.app.failure import ExitCode
from gateway.app.operations import checking, provisioning
from gateway.app.operations.findings import Grade
from gateway.app.runtime import Runtime
from gateway.commands.lines import finding_line
from gateway.commands.terminal import (
    Invocation,
    add_adopt,
    add_port_offset,
    command,
    printable,
    run,
    waiting,
)


@command
@add_port_offset
def check(invocation: Invocation, port_offset: int) -> None:
    """Check the configuration, connect to everything, and print the findings."""
    with waiting("checking", shown=not invocation.as_json):
        findings = run(checking.check, invocation.read(), Runtime(), port_offset=port_offset)
    bad = any(finding.grade is Grade.BAD for finding in findings)
    value = [
        {"subject": found.subject, "grade": found.grade.value, "text": found.text}
        for found in findings
    ]
    invocation.print({"good": not bad, "findings": value}, *map(finding_line, findings))
    sys.exit(ExitCode.FAILED if bad else ExitCode.DONE)


@command
@add_port_offset
@add_adopt
def provision(invocation: Invocation, port_offset: int, adopted: tuple[str, ...]) -> None:
    """
    Create missing backlog queues and configured queues. Needs the right Manage.

    Exit code 3: a namespace doesn't answer; the others are done. 75: none answers.
    """
    with waiting("creating queues", shown=not invocation.as_json):
        made = run(
            provisioning.provision_all,
            invocation.read(),
            Runtime(),
            port_offset=port_offset,
            adopted=adopted,
        )
    value = [
        {
            "namespace": each.namespace,
            "queues": list(each.queues),
            "problem": None if each.failure is None else str(each.failure),
        }
        for each in made
    ]
    invocation.print(value, *(line for each in made for line in _lines(each)))
    sys.exit(provisioning.provision_code(made))


def _lines(made: provisioning.Made) -> list[Text]:
    lines = [Text(f"namespace {made.namespace}: {', '.join(made.queues) or 'nothing'} made")]
    if made.failure is not None:
        lines.append(Text(printable(str(made.failure)), style="red"))
    return lines
