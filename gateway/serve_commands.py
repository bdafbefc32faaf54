"""`pairgate serve` and `syphon`, and what looks after their configuration: `check`, `provision`."""

import sys
from typing import Final

import attrs
import click
from rich.text import Text

from gateway.app import checking, serving, syphoning
from gateway.app.failure import ExitCode
from gateway.app.findings import Grade
from gateway.app.logs import open_log, reloader
from gateway.app.outside import Outside
from gateway.terminal import Invocation, add_port_offset, command, finding_line, run

STANDARD_ERROR: Final = 2


@command
@add_port_offset
def serve(invocation: Invocation, port_offset: int) -> None:
    """Serve clients until SIGTERM or Ctrl-C, which drain; a second one ends at once."""
    loaded = invocation.read()
    with open_log(loaded, STANDARD_ERROR, as_json=invocation.as_json) as log:
        reload = reloader(loaded, log, invocation.read)
        run(serving.serve, loaded, Outside(observer=log), port_offset=port_offset, reload=reload)


@command
@click.option("--label", help="Whose backlog. Default: the pair's.")
@click.option("--to", metavar="NAMESPACE", help="Where it goes. Default: the pair's primary.")
def syphon(invocation: Invocation, label: str | None, to: str | None) -> None:
    """Move the backlog from the secondary to where it belongs, and nothing else."""
    loaded = invocation.read()
    with open_log(loaded, STANDARD_ERROR, as_json=invocation.as_json) as log:
        run(syphoning.syphon, loaded, Outside(observer=log), label=label, to=to)


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
    """Make the backlog queues and the configured queues that are missing; needs Manage."""
    made = run(checking.provision_all, invocation.read(), Outside(), port_offset=port_offset)
    lines = [
        Text(f"namespace {each.namespace}: {', '.join(each.queues) or 'nothing'} made")
        for each in made
    ]
    invocation.print([attrs.asdict(each) for each in made], *lines)
