"""`[ledger]`, and what is wrong with it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import attrs
from attrs import validators

from gateway.config.options import Config
from gateway.domain.option_fields import BYTES
from gateway.extensions.tables import Table

LEAST: Final = 1024 * 1024  # bytes: some 7,000 facts


@attrs.frozen(kw_only=True)
class LedgerOptions:
    """`[ledger]`: without this section no facts are recorded."""

    file: Path = Path("var/ledger.db")
    # of the file: the oldest facts are forgotten beyond it
    limit: int = attrs.field(
        default=64 * 1024 * 1024, validator=validators.ge(LEAST), metadata=BYTES
    )


LEDGER: Final = Table[LedgerOptions | None](name="ledger", kind=LedgerOptions | None, missing=None)


def files(config: Config) -> Iterator[tuple[str, Path]]:
    """The file of the ledger, with the path of its key."""
    options = config.of(LEDGER)
    if options is not None:
        yield "ledger.file", options.file
