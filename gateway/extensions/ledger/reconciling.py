"""`pairgate reconcile`: counts and ids of a time, from the ledgers of a pair, with a seal."""

import json
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

import attrs
import click
from rich.text import Text

from gateway.app.failure import ExitCode, Failure
from gateway.app.operations.admin_choice import AdminChoice
from gateway.app.runtime import Runtime
from gateway.commands.gateways import AskedProcess, add_processes, asked_processes
from gateway.commands.terminal import Duration, Invocation, command_for_several, printable, run
from gateway.domain.errors import MessageError
from gateway.extensions.ledger.facts import (
    FACTS,
    FactsQuery,
)
from gateway.extensions.ledger.history import time_text
from gateway.extensions.ledger.report import (
    LedgerSource,
    Reconciliation,
    Totals,
    opened,
    sealed,
    source_of,
    value_of_report,
)

_TOLD: Final = 10  # ids of each kind that are printed for people


@command_for_several
@add_processes
@click.option(
    "--since", type=Duration(), help="Such as 2h. Default: as long as all ledgers remember."
)
@click.option("--all-ids", is_flag=True, help="The ids of all accepted messages, too.")
@click.option(
    "--seal",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write the report into this file, sealed with the pair's envelope key.",
)
@click.option(
    "--verify",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Show the report in this file, if its seal is right; ask nobody.",
)
def reconcile(
    invocation: Invocation, admin: AdminChoice, urls: Sequence[str], **given: Any
) -> None:
    """
    Count what was accepted, diverted, moved, dead-lettered or sent twice, with the ids.

    Name each process of the pair that has a ledger by --url or --config. Exit code 3: the report
    isn't complete, because a ledger has forgotten, missed or not told a part of the time.
    """
    if given["verify"] is not None:
        found = _verified(invocation, given["verify"])
    else:
        asked = asked_processes(invocation, admin, urls)
        found = run(_reconcile, asked, given["since"], all_ids=given["all_ids"])
        if given["seal"] is not None:
            _write_sealed(invocation, given["seal"], found)
    invocation.print(
        value_of_report(found), *(Text(printable(line)) for line in _lines_of_report(found))
    )
    sys.exit(ExitCode.DONE if found.complete else ExitCode.PARTLY)


async def _reconcile(
    asked: Sequence[AskedProcess], seconds: float | None, *, all_ids: bool
) -> Reconciliation:
    until = Runtime.now()
    if seconds is None:
        remembered = [since for one in asked if (since := await _since(one)) is not None]
        since = max(remembered, default=until)
    else:
        since = until - timedelta(seconds=seconds)
    totals, sources, read = Totals(), list[LedgerSource](), set[str]()
    for one in asked:
        try:
            sources.append(
                await _add_facts(one, FactsQuery(since=since, until=until), totals, read)
            )
        except Failure as failure:
            sources.append(LedgerSource(name=one.name, error=str(failure)))
    return totals.reconciled(since, until, sources, all_ids=all_ids)


async def _since(one: AskedProcess) -> datetime | None:
    """The date from which the process remembers all; None: it doesn't tell, as it will again."""
    try:
        _, page = await one.give(FACTS, FactsQuery(limit=1))
    except Failure:
        return None
    return page.since


async def _add_facts(
    one: AskedProcess, query: FactsQuery, totals: Totals, read: set[str]
) -> LedgerSource:
    """Add the facts of a process, unless its ledger is among those that were `read` already."""
    while True:
        name, page = await one.give(FACTS, query)
        if page.ledger not in read:
            totals.add(page.facts)
        if page.next is None or page.ledger in read:
            read.add(page.ledger)
            return source_of(name, page)
        query = attrs.evolve(query, after=page.next)


def _keys(invocation: Invocation) -> Sequence[Any]:
    config = invocation.read_with("pairing")
    keys = () if config.pairing is None else config.pairing.envelope_keys
    if not keys:
        raise Failure(
            "a seal needs pairing.envelope_keys, which this configuration doesn't have",
            ExitCode.WRONG,
        )
    return keys


def _write_sealed(invocation: Invocation, file: Path, found: Reconciliation) -> None:
    content = json.dumps(sealed(found, _keys(invocation)[0]))
    try:
        file.write_text(content + "\n")
    except OSError as error:
        raise Failure(f"--seal: {file}: {error.strerror}", ExitCode.FAILED) from error


def _verified(invocation: Invocation, file: Path) -> Reconciliation:
    try:
        return opened(json.loads(file.read_text()), _keys(invocation))
    except (OSError, ValueError, MessageError) as error:
        raise Failure(f"--verify: {file}: {error}", ExitCode.FAILED) from error


_ROWS: Final[Mapping[str, str]] = {
    "accepted": "accepted",
    "diverted": "of these diverted to the backlog",
    "moved": "moved home",
    "waiting": "waiting on the backlog",
    "completed_on_backlog": "completed on the backlog",
    "dead_lettered": "dead-lettered on the backlog",
    "twice": "accepted twice",
    "possibly_twice": "possibly twice",
    "unknown": "unknown",
    "not_sent": "not sent: their clients got an error",
}
_LISTED: Final = _ROWS.keys() - {"accepted", "diverted", "moved"}


def _lines_of_report(found: Reconciliation) -> list[str]:
    lines = [f"Messages from {time_text(found.since)} to {time_text(found.until)}:"]
    for name, text in _ROWS.items():
        lines.append(f"  {getattr(found, name):>9,}  {text}")
        lines += _lines_of_ids(found.ids.get(name, ())) if name in _LISTED else ()
    if found.without_id:
        lines.append(f"  {found.without_id:>9,}  sends of messages without an id")
    lines += [_lack(each) for each in found.sources if not each.knows_all(found.since)]
    if found.complete:
        lines.append("Complete: no ledger lacks anything of that time.")
    return lines


def _lines_of_ids(ids: Sequence[str]) -> list[str]:
    more = [f"and {len(ids) - _TOLD:,} more (--json has all)"] if len(ids) > _TOLD else []
    return [f"{'':11}  {each}" for each in (*ids[:_TOLD], *more)]


def _lack(source: LedgerSource) -> str:
    if source.since is None:
        return f"{source.name} didn't tell: {source.error}"
    gaps = "".join(f"; killed at {time_text(each)}" for each in source.gaps)
    unwritten = f"; {source.unwritten} facts not written" if source.unwritten else ""
    return f"{source.name} remembers all since {time_text(source.since)}{gaps}{unwritten}"
