"""The ledger of a process, and the interceptors that record facts in it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from gateway.app.assembly.interceptor_rows import InterceptorRow, Place
from gateway.app.failure import ExitCode, Failure
from gateway.app.runtime import Runtime
from gateway.config.options import Config
from gateway.extensions.ledger import EXTENSION
from gateway.extensions.ledger.options import LEDGER
from gateway.interception import Interceptor
from gateway.ports import Observer

if TYPE_CHECKING:
    from gateway.extensions.ledger.ledger import Ledger


@contextmanager
def open_ledger(config: Config, observer: Observer) -> "Iterator[Ledger | None]":
    """
    The ledger of this process, for the life of the context; None: no facts are recorded.

    Raises:
        Failure: the file can't be opened.
    """
    options = config.of(LEDGER)
    if options is None:
        yield None
        return
    # Imported here: a process without a ledger starts without SQLite.
    import apsw

    from gateway.extensions.ledger.file import LedgerFile
    from gateway.extensions.ledger.ledger import Ledger

    clock = Runtime.now
    try:
        file = LedgerFile.open(options.file, options.limit, uuid4().hex, clock())
    except (apsw.Error, OSError) as error:
        raise Failure(f"ledger.file: {options.file}: {error}", ExitCode.FAILED) from error
    ledger = Ledger(file=file, clock=clock, observer=observer)
    try:
        yield ledger
    finally:
        ledger.close()


def _recorder(place: Place) -> Interceptor | None:
    name, pairing = place.namespace.name, place.config.pairing
    is_home = name == place.config.home_name
    is_secondary = pairing is not None and name == pairing.secondary
    if EXTENSION.name not in place.runtime.opened or not (is_home or is_secondary):
        return None
    from gateway.extensions.ledger.ledger import Ledger
    from gateway.extensions.ledger.recorder import Recorder, identify_with

    ledger = place.runtime.opened[EXTENSION.name]
    assert isinstance(ledger, Ledger), "`open_ledger` has opened it"
    if pairing is None or is_home:
        return Recorder(ledger.record, place.runtime.now)
    return Recorder(ledger.record, place.runtime.now, identify_with(place.runtime.envelopes))


RECORDER: Final = InterceptorRow(
    "ledger", "gateway/extensions/ledger/recorder.py", "[ledger]", _recorder
)
