"""`pairgate check` and `provision`: whether all is there that the configuration names; make it."""

import sys

from rich.text import Text

from gateway.app import checking
from gateway.app.failure import ExitCode
from gateway.app.findings import Grade
from gateway.app.outside import Outside
from gateway.commands.lines import finding_line
from gateway.commands.terminal import Invocation, add_port_offset, command, printable, run


@command
@add_port_offset
def check(invocation: Invocation, port_offset: int) -> None:
    """Check the configuration, connect to everything, and tell what was found."""
    findings = run(checking.check, invocation.read(), Outside(), port_offset=port_offset)
    bad = any(finding.grade is Grade.BAD for finding in findings)
    value = [
        {"subject": found.subject, "grade": found.grade.value, "text": found.text}
        for found in findings
    ]
    invocation.print({"good": not bad, "findings": value}, *map(finding_line, findings))
    sys.exit(ExitCode.FAILED if bad else ExitCode.DONE)


@command
@add_port_offset
def provision(invocation: Invocation, port_offset: int) -> None:
    """
    Make the backlog queues and the configured queues that are missing; needs Manage.

    Exit code 3: a namespace doesn't answer, the others are done. 75: none answers.
    """
    made = run(checking.provision_all, invocation.read(), Outside(), port_offset=port_offset)
    value = [
        {
            "namespace": each.namespace,
            "queues": list(each.queues),
            "problem": None if each.failure is None else str(each.failure),
        }
        for each in made
    ]
    invocation.print(value, *(line for each in made for line in _lines(each)))
    sys.exit(checking.provision_code(made))


def _lines(made: checking.Made) -> list[Text]:
    lines = [Text(f"namespace {made.namespace}: {', '.join(made.queues) or 'nothing'} made")]
    if made.failure is not None:
        lines.append(Text(printable(str(made.failure)), style="red"))
    return lines
