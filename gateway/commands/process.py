"""`pairgate reload` and `drain`: orders to a running process as a whole."""

import sys

import click

from gateway.app.failure import ExitCode
from gateway.app.operations.admin_choice import AdminChoice
from gateway.commands.admin import add_admin, give
from gateway.commands.terminal import Duration, Invocation, add_reason, command
from gateway.domain.operators.process import (
    DrainReport,
    ProcessAction,
    ProcessAnswer,
    ProcessOrder,
)
from gateway.wire.pairgate.control_calls import DRAIN, RELOAD


@command
@add_admin
@add_reason
def reload(invocation: Invocation, admin: AdminChoice, reason: str) -> None:
    """
    Let the running gateway read its configuration again, as SIGHUP does.

    It applies log level, access policies and accounts, and names the sections that need a restart
    (exit code 3). If anything is wrong, it changes nothing (exit code 1).
    """
    order = ProcessOrder(action=ProcessAction.RELOAD, reason=reason)
    answer = give(invocation, admin, RELOAD, order, lines)
    sys.exit(ExitCode.PARTLY if answer.needs_restart else ExitCode.DONE)


@command
@add_admin
@add_reason
@click.option("--wait", is_flag=True, help="Return when the drain has ended, with its report.")
@click.option("--timeout", type=Duration(), default="5m", show_default=True, help="Of --wait.")
def drain(
    invocation: Invocation, admin: AdminChoice, reason: str, wait: bool, timeout: float
) -> None:
    """
    End the running gateway as SIGTERM does: accept nothing more, finish, end.

    Exit code 3: with --wait, some work was cut off.
    """
    order = ProcessOrder(action=ProcessAction.DRAIN, reason=reason, wait=wait)
    answer = give(invocation, admin, DRAIN, order, lines, timeout if wait else None)
    left = answer.report is not None and bool(answer.report.left)
    sys.exit(ExitCode.PARTLY if left else ExitCode.DONE)


def lines(address: str, answer: ProcessAnswer) -> list[str]:
    """The answer for people."""
    done = "done" if answer.changed else "nothing to do"
    if answer.needs_restart:
        done = "done in part" if answer.changed else "nothing was applied"
    found = [f"process at {address}: {answer.action}: {done}"]
    if answer.before.reason != answer.after.reason:
        found.append(f"  state: {answer.before.reason} -> {answer.after.reason}")
    if answer.action == ProcessAction.RELOAD.value:
        found.append(f"  applied: {', '.join(answer.applied) or 'nothing'}")
        found.append(f"  log level: {answer.after.log_level}")
        found.append(f"  access policies: {', '.join(answer.after.access) or 'none'}")
    if answer.needs_restart:
        found.append(f"  need a restart: {', '.join(answer.needs_restart)}")
    found += [f"  warning: {each}" for each in answer.warnings]
    if answer.report is not None:
        found.append(f"  {_text_of(answer.report)}")
    return found


def _text_of(report: DrainReport) -> str:
    finished = "unknown" if report.finished is None else report.finished
    left = "unknown" if report.left is None else report.left
    return f"{report.unit}: {finished} finished, {left} left, after {report.seconds:g} s"
