"""An endpoint that accepts connections says so, and where the operators' page is."""

from pathlib import Path

import attrs
import pytest

from gateway.app.endpoints import listening
from gateway.config.endpoints import ADMIN, Endpoint
from gateway.domain.events.gateway import Listening, PageServed
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
