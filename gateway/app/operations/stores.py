"""
`pairgate store check | backup | compact`: maintenance of an embedded store. Only a backup can be
made while a gateway serves the store.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from rich.filesize import decimal

from gateway.app.failure import ExitCode, Failure
from gateway.app.operations.findings import CheckFinding, Findings, Grade
from gateway.app.runtime import Runtime
from gateway.config.options import Config
from gateway.store.embedded.copying import Copy, back_up, compact
from gateway.store.embedded.files import Disk, StoreError, StoreInUse
from gateway.store.embedded.inspection import EntityContent, Inspection, inspect
from gateway.store.embedded.live_copying import Throttle, back_up_live
from gateway.store.embedded.salvage import Salvaged, salvage

SCHEME: Final = "embedded:"
ID_BITS: Final = 63
MOST_NAMED: Final = 10


def store_file(name: str, read: Callable[[], Config]) -> Path:
    """
    The store file for a file name, a URL, or the name of a configured namespace; the configuration
    is read only for the last.

    Raises:
        Failure: `name` is neither a file, a URL nor a namespace.
    """
    if name.startswith(SCHEME):
        return Path(name.removeprefix(SCHEME))
    if Path(name).exists():
        return Path(name)
    namespaces = read().namespaces
    if name not in namespaces:
        known = ", ".join(namespaces)
        text = f"{name}: no such file, and no such namespace; there are {known}"
        raise Failure(text, ExitCode.WRONG)
    url = namespaces[name].url
    if not url.startswith(SCHEME):
        raise Failure(f"namespace {name} isn't an embedded store", ExitCode.WRONG)
    return Path(url.removeprefix(SCHEME))


def check_store(path: Path, *, accept_loss: bool) -> Inspection:
    """As `inspect`. Raises `Failure`: the store can't be inspected."""
    with _failing():
        return inspect(path, Disk(), accept_loss=accept_loss)


def back_up_store(path: Path, target: Path, runtime: Runtime, rate_limit: float) -> Copy:
    """
    As `back_up`, or, of a store that a gateway serves, as `back_up_live`, with at most `rate_limit`
    bytes a second. Raises `Failure`: no copy was made.
    """
    with _failing():
        new_id = runtime.rng("backup").getrandbits(ID_BITS)
        try:
            return back_up(path, target, new_id, Disk())
        except StoreInUse:
            return back_up_live(path, target, new_id, Disk(), Throttle(rate_limit))


def salvage_store(path: Path, target: Path, runtime: Runtime) -> Salvaged:
    """As `salvage`. Raises `Failure`: nothing was created."""
    with _failing():
        return salvage(path, target, runtime.rng("salvage").getrandbits(ID_BITS), Disk())


def compact_store(path: Path) -> Copy:
    """As `compact`. Raises `Failure`: the store is unchanged."""
    with _failing():
        return compact(path, Disk())


@contextmanager
def _failing() -> Iterator[None]:
    try:
        yield
    except StoreInUse as error:
        text = f"{error}; stop the gateway that serves it, then try again"
        raise Failure(text, ExitCode.TEMPORARY) from error
    except StoreError as error:
        raise Failure(str(error)) from error


def findings_of(path: Path, found: Inspection) -> list[CheckFinding]:
    """The findings for people: the store, its queues, then its problems."""
    findings, store = Findings(), str(path)
    findings.add(
        store,
        Grade.GOOD if found.good else Grade.BAD,
        f"{decimal(found.bytes)}, {found.commits} commits, "
        + ("intact" if found.good else "damaged"),
    )
    if found.log_bytes:
        text = (
            f"{decimal(found.log_bytes)} in the log after an unclean shutdown: read, and left there"
        )
        findings.add(store, Grade.GOOD, text)
    for content in found.contents:
        findings.add(_name_of(content), Grade.GOOD, _text_of(content))
    if found.loss:
        done = "; accepted: the store starts again" if found.accepted else ""
        grade = Grade.WARNING if found.accepted else Grade.BAD
        findings.add(store, grade, f"{found.loss}{done}")
    for doubt in found.doubts:
        findings.add(store, Grade.WARNING, doubt)
    for problem in found.problems:
        findings.add(store, Grade.BAD, problem)
    return findings.items


def salvaged_findings(target: Path, found: Salvaged) -> list[CheckFinding]:
    """The findings for people: the content of the new store, and the losses."""
    findings, store = Findings(), str(target)
    findings.add(store, Grade.GOOD, f"{found.messages} messages")
    if found.quarantined:
        text = f"{found.quarantined} damaged messages were moved to the table quarantine"
        findings.add(store, Grade.WARNING, text)
    if found.lost_messages:
        named = ", ".join(map(str, found.lost[:MOST_NAMED]))
        more = ", ..." if found.lost_messages > MOST_NAMED else ""
        findings.add(store, Grade.BAD, f"{found.lost_messages} messages are lost: {named}{more}")
    for remark in found.remarks:
        findings.add(store, Grade.WARNING, remark)
    return findings.items


def _name_of(content: EntityContent) -> str:
    return content.queue or "a deleted queue"


def _text_of(content: EntityContent) -> str:
    return f"{content.messages} {content.state}, {decimal(content.bytes)}"
