"""
`pairgate reconcile`: the facts of all asked processes between two dates, as counts and ids, sealed
with a key of the envelope.

    {"report": "...", "seal": {"kid": "...", "mac": "..."}}

The report is text of JSON, so that the MAC is of exactly these characters: HMAC-SHA256 of
`pairgate-reconcile` and the text.
"""

import hmac
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import attrs
import cattrs.preconf.json

from gateway.domain.envelope import EnvelopeKey
from gateway.domain.errors import MessageError
from gateway.extensions.ledger.facts import Fact, LedgerFacts
from gateway.extensions.ledger.history import Counts, MessagePlace, Twice

_PURPOSE: Final = b"pairgate-reconcile"
ACCEPTED: Final = "accepted"
_KINDS: Final[Mapping[str, Callable[[Counts], object]]] = {
    ACCEPTED: lambda counts: counts.accepted or counts.diverted,
    "diverted": lambda counts: counts.diverted,
    "moved": lambda counts: counts.accepted and counts.completed,
    "waiting": lambda counts: counts.where is MessagePlace.ON_BACKLOG,
    "completed_on_backlog": lambda counts: counts.where is MessagePlace.COMPLETED,
    "dead_lettered": lambda counts: counts.dead_lettered,
    "twice": lambda counts: counts.twice is Twice.CERTAIN,
    "possibly_twice": lambda counts: counts.twice is Twice.POSSIBLE,
    "unknown": lambda counts: counts.where is MessagePlace.UNKNOWN,
    "not_sent": lambda counts: counts.where is MessagePlace.NOT_SENT,
}
_converter: Final = cattrs.preconf.json.make_converter()


@attrs.frozen(kw_only=True)
class LedgerSource:
    """A process that told its facts, or why it didn't."""

    name: str
    since: datetime | None = None  # it remembers all facts from then on; None: it told nothing
    unwritten: int = 0  # facts that it couldn't write
    gaps: tuple[datetime, ...] = ()  # a process was killed then
    error: str = ""

    def knows_all(self, since: datetime) -> bool:
        """True if none of its facts since then is missing."""
        remembers = self.since is not None and self.since <= since
        return remembers and not self.unwritten and all(each < since for each in self.gaps)


@attrs.frozen(kw_only=True)
class Reconciliation:
    """
    Messages between two dates: numbers, then the ids of all but those that came to the primary
    alone. A message of two entities counts for each. Of messages without an id only sends are
    counted.
    """

    since: datetime
    until: datetime
    complete: bool  # False: a process knows less, or didn't answer
    sources: tuple[LedgerSource, ...]
    accepted: int  # by the primary or the backlog
    diverted: int
    moved: int  # diverted, and then accepted by the primary
    waiting: int
    completed_on_backlog: int
    dead_lettered: int
    twice: int
    possibly_twice: int
    unknown: int
    not_sent: int
    without_id: int  # sends of messages without an id
    ids: Mapping[str, tuple[str, ...]]  # ENTITY/ID, by the names of the counts


@attrs.define(eq=False)
class Totals:
    """Adds up facts, by entity and message id."""

    _counts: dict[tuple[str, str], Counts] = attrs.field(factory=dict, init=False)
    _without_id: int = attrs.field(default=0, init=False)

    def add(self, facts: Iterable[Fact]) -> None:
        for each in facts:
            if each.message:
                self._counts.setdefault((each.entity.lower(), each.message), Counts()).add(each)
            else:
                self._without_id += 1

    def reconciled(
        self, since: datetime, until: datetime, sources: Sequence[LedgerSource], *, all_ids: bool
    ) -> Reconciliation:
        """The result. With `all_ids` the ids of all accepted messages are among them."""
        ids = {
            name: tuple(
                f"{entity}/{message}"
                for (entity, message), counts in self._counts.items()
                if belongs(counts)
            )
            for name, belongs in _KINDS.items()
        }
        return Reconciliation(
            since=since,
            until=until,
            complete=all(each.knows_all(since) for each in sources),
            sources=tuple(sources),
            **{name: len(found) for name, found in ids.items()},
            without_id=self._without_id,
            ids={name: found for name, found in ids.items() if all_ids or name != ACCEPTED},
        )


def source_of(name: str, page: LedgerFacts) -> LedgerSource:
    return LedgerSource(
        name=f"{name} ({page.process})",
        since=page.since,
        unwritten=page.unwritten,
        gaps=page.gaps,
    )


def value_of_report(found: Reconciliation) -> dict[str, Any]:
    value: dict[str, Any] = _converter.unstructure(found)
    return value


def sealed(found: Reconciliation, key: EnvelopeKey) -> dict[str, Any]:
    """The report with the MAC of the key."""
    text = json.dumps(value_of_report(found), sort_keys=True)
    return {"report": text, "seal": {"kid": key.id, "mac": _mac(key, text)}}


def opened(content: Any, keys: Sequence[EnvelopeKey]) -> Reconciliation:
    """
    The report in what `sealed` returned.

    Raises:
        MessageError: it is none, or no key of the pair sealed it as it is.
    """
    try:
        text, seal = content["report"], content["seal"]
        known = [each for each in keys if each.id == seal["kid"]]
        if not any(hmac.compare_digest(_mac(each, text), str(seal["mac"])) for each in known):
            raise MessageError("no key of the pair has sealed this report as it is")
        found: Reconciliation = _converter.structure(json.loads(text), Reconciliation)
    except (
        LookupError,
        TypeError,
        ValueError,
        AttributeError,
        cattrs.BaseValidationError,
    ) as error:
        raise MessageError("this is no report of `pairgate reconcile --seal`") from error
    return found


def _mac(key: EnvelopeKey, text: str) -> str:
    return key.mac(_PURPOSE + b"\0" + text.encode())
