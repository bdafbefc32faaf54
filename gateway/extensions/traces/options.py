"""`[traces]`, and what is wrong with it."""

import re
from collections.abc import Iterator
from typing import Final

import attrs
from attrs import validators

from gateway.config.options import Config
from gateway.config.problems import is_installed
from gateway.domain.errors import needs_extra
from gateway.domain.option_fields import NUMBER
from gateway.extensions.tables import Table
from gateway.wire.http.hosts import split_url

_COLLECTOR: Final = re.compile(r"https?://[^/?#\s@]+/[^?#\s]+", re.IGNORECASE)


@attrs.frozen(kw_only=True)
class Traces:
    """`[traces]`: without this section there are no spans."""

    endpoint: str  # of OTLP over HTTP: http(s)://HOST:PORT/v1/traces
    # The share of the traces that is recorded.
    sample_ratio: float = attrs.field(
        default=1.0, validator=[validators.ge(0.0), validators.le(1.0)], metadata=NUMBER
    )
    service_name: str = attrs.field(default="pairgate", validator=validators.min_len(1))


TRACES: Final = Table[Traces | None](name="traces", kind=Traces | None, missing=None)


def problems(config: Config) -> Iterator[str]:
    """Yield a line for each error; each begins with the path of a key."""
    traces = config.of(TRACES)
    if traces is None:
        return
    if not _is_collector(traces.endpoint):
        yield (  # without what was found: a password may be in it
            "traces.endpoint: http(s)://HOST[:PORT]/PATH expected, such as"
            " http://127.0.0.1:4318/v1/traces, without a user"
        )
    if not is_installed("opentelemetry.exporter.otlp.proto.http"):
        yield f"traces: {needs_extra('otel')}"


def _is_collector(url: str) -> bool:
    try:
        split_url(url)
    except ValueError:
        return False
    return _COLLECTOR.fullmatch(url) is not None
