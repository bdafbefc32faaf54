"""`[faults]`, and where it may not be allowed."""

from collections.abc import Iterator
from typing import Final

import attrs

from gateway.config.endpoints import host_of_bind, is_loopback
from gateway.config.options import Config
from gateway.config.places import is_own_url
from gateway.extensions.tables import Table


@attrs.frozen(kw_only=True)
class FaultsOptions:
    """`[faults]`: allows operators to let the embedded namespace fail, for tests."""

    allowed: bool = False
    allow_remote: bool = False  # also with endpoints that other machines reach


FAULTS: Final = Table[FaultsOptions](name="faults", kind=FaultsOptions, missing=FaultsOptions())


def problems(config: Config) -> Iterator[str]:
    """Yield a line for each error; each begins with the path of a key."""
    options = config.of(FAULTS)
    if not options.allowed:
        return
    if config.pairing is not None:
        yield (
            "faults.allowed: needs a namespace without [pairing], because a pair would hide the"
            " faults; `pairgate drill` rehearses its outage"
        )
    elif not is_own_url(config.home.url):
        yield (
            f"faults.allowed: needs an embedded namespace, and {config.home_name} is another"
            " broker, which others may use too"
        )
    if config.serving_processes > 1:
        yield "faults.allowed: needs one process, which alone can count: remove workers"
    beyond = [each.bind for each in config.endpoints if not is_loopback(host_of_bind(each.bind))]
    if beyond and not options.allow_remote:
        yield (
            f"faults.allowed: {', '.join(beyond)} is reachable from other machines, whose clients"
            " would meet the faults: bind to 127.0.0.1, or add allow_remote = true"
        )
