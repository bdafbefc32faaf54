"""An endpoint says that it accepts connections, where the page is, and whom it can't serve."""

import errno
import os
from pathlib import Path

import attrs
import pytest

from gateway.app.endpoints import listening, loss_reporter, port_reporter
from gateway.app.runtime import Runtime
from gateway.config.endpoints import ADMIN, Endpoint
from gateway.domain.events.gateway import ConnectionLost, Doubtful, Event, Listening, PageServed
from gateway.frontends.refusals import Refusals
from gateway.net.tls import TlsOptions

PLAIN = Endpoint(protocol=ADMIN, bind="127.0.0.1:0")
TLS = TlsOptions(certificate=Path("a.crt"), key=Path("a.key"))


@pytest.mark.parametrize(
    ("endpoint", "address", "page"),
    [
        (PLAIN, "127.0.0.1:9640", "http://127.0.0.1:9640/"),
        (PLAIN, "0.0.0.0:9640", "http://localhost:9640/"),
        (attrs.evolve(PLAIN, tls=TLS), "[::1]:9640", "https://[::1]:9640/"),
        (PLAIN, "unix:/run/admin.sock", ""),
        (Endpoint(protocol="service-bus", bind="127.0.0.1:0"), "127.0.0.1:5672", ""),
    ],
)
def test_the_page_is_named_where_a_browser_finds_it(
    endpoint: Endpoint, address: str, page: str
) -> None:
    first, *others = listening(endpoint, address)

    assert first == Listening(protocol=endpoint.protocol, address=address)
    assert others == ([PageServed(page=page)] if page else [])


class Observed:
    def __init__(self) -> None:
        self.events: list[Event] = []

    def report(self, event: Event) -> None:
        self.events.append(event)


def test_a_client_that_waits_for_a_descriptor_is_a_warning_and_a_lost_one_is_not() -> None:
    observed = Observed()
    runtime = Runtime(observer=observed)
    lack = OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    loss_reporter(runtime, "admin", Refusals(observed))("", lack)
    port_reporter(runtime, "workers")("", lack)
    port_reporter(runtime, "workers")("127.0.0.1:1", ConnectionResetError("reset"))

    assert observed.events == [
        Doubtful(text="admin: a client must wait: Too many open files"),
        Doubtful(text="workers: a client must wait: Too many open files"),
        ConnectionLost(peer="127.0.0.1:1", reason="ConnectionResetError: reset"),
    ]
    assert [each.level for each in observed.events] == ["warning", "warning", "debug"]
