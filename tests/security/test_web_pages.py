"""Pages of other sites, where the only key is the well-known one."""

from collections.abc import Callable
from urllib.parse import urlencode

import attrs
import pytest

from gateway.domain.storage_queue import EMULATOR_ACCOUNT
from gateway.frontends.web_guard import WebGuard
from gateway.wire.http.messages import Headers
from gateway.wire.storage_queue.sas import build_sas
from tests.e2e.processes import GatewayProcess, Gateways
from tests.security.gateway import NAMESPACE, ask, every_port, head, port_of, status, token

FOREIGN = "http://evil.example"
ALLOWED = "http://shop.example:3000"
UPGRADE = (
    ("Connection", "Upgrade"),
    ("Upgrade", "websocket"),
    ("Sec-WebSocket-Version", "13"),
    ("Sec-WebSocket-Protocol", "AMQPWSB10"),
    ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
)


def requests(port: Callable[[str], int]) -> dict[str, tuple[int, str, str, int]]:
    """By their names: the port, method and target, and the status that a client of ours gets."""
    sent = "/orders/messages"
    return {
        "send": (port("service-bus"), "POST", sent, 201),
        "send at a port for REST": (port("service-bus-http"), "POST", sent, 201),
        "list": (port("service-bus-http"), "GET", "/$Resources/queues", 200),
        "websocket": (port("service-bus"), "GET", "/$servicebus/websocket", 101),
        "websocket at a port for AMQP": (port("amqp"), "GET", "/$servicebus/websocket", 101),
        "trigger": (port("admin"), "POST", "/triggers/orders", 202),
        "status": (port("admin"), "GET", "/status", 200),
        "metrics": (port("admin"), "GET", "/metrics", 200),
        "history": (port("admin"), "GET", "/v1/history", 200),
        "the operators' page": (port("admin"), "GET", "/", 200),
        "its script": (port("admin"), "GET", "/page/page.js", 200),
        "scale": (port("admin"), "GET", "/scale/orders", 200),
        # A shared key needs a date; 403 would be the guard's, and is told apart by its code below.
        "storage": (port("storage-queue"), "GET", "/devstoreaccount1?comp=list", 403),
    }


async def asked(
    request: tuple[int, str, str, int], host: str, *more: tuple[str, str]
) -> tuple[int, bytes]:
    port, method, target, _ = request
    fields = [("Host", host.replace("PORT", str(port))), *more]
    if "websocket" in target:
        fields += UPGRADE
    elif "/messages" in target or "Resources" in target:
        fields.append(("Authorization", token(port)))
    if method == "POST":
        fields.append(("Content-Length", "0"))
    answer = await ask(port, head(method, target, *fields))
    return status(answer), answer


async def started(gateways: Gateways, more: str = "") -> GatewayProcess:
    return await gateways.start(every_port(more))


async def test_without_policies_a_page_of_another_site_can_do_nothing(gateways: Gateways) -> None:
    gateway = await started(gateways)
    wrong = {}

    for name, request in requests(lambda protocol: port_of(gateway, protocol)).items():
        for host, *more in (
            ("127.0.0.1:PORT", ("Origin", FOREIGN)),
            ("127.0.0.1:PORT", ("Origin", "null")),
            ("127.0.0.1:PORT", ("Origin", FOREIGN), ("Content-Type", "text/plain")),
            ("evil.example:PORT",),  # after DNS rebinding
            ("evil.example:PORT", ("Origin", "http://evil.example:PORT")),
            ("127.0.0.1.evil.example",),
        ):
            code, answer = await asked(request, host, *more)
            if code != 403 or (name == "storage" and b"AuthorizationFailure" not in answer):
                wrong[name, host, *more] = code

    assert wrong == {}


async def test_clients_without_an_origin_and_pages_that_are_allowed_come_in(
    gateways: Gateways,
) -> None:
    gateway = await started(gateways, f'allowed_origins = ["{ALLOWED}"]')
    found, expected = {}, {}

    for name, request in requests(lambda protocol: port_of(gateway, protocol)).items():
        for host, *more in (
            ("127.0.0.1:PORT",),
            ("localhost:PORT",),
            ("[::1]:PORT",),
            ("shop.localhost:PORT",),
            ("127.0.0.1:PORT", ("Origin", ALLOWED)),
            ("shop.example:3000", ("Origin", ALLOWED)),
        ):
            code, answer = await asked(request, host, *more)
            found[name, host, *more] = (code, b"AuthorizationFailure" in answer)
            expected[name, host, *more] = (request[3], False)

    assert found == expected


async def test_in_development_other_containers_come_in_by_name_and_no_page_does(
    gateways: Gateways,
) -> None:
    beyond = every_port('allowed_hosts = ["Pairgate.test"]').replace("127.0.0.1", "0.0.0.0")
    gateway = await gateways.start(f"development = true\n{beyond}")
    found, expected = {}, {}

    for name, request in requests(lambda protocol: port_of(gateway, protocol)).items():
        for host, *more in (
            ("servicebus:PORT",),
            ("172.18.0.2:PORT",),
            ("pairgate.test:PORT",),
            ("servicebus:PORT", ("Origin", FOREIGN)),
            ("evil.example:PORT",),  # after DNS rebinding
        ):
            code, answer = await asked(request, host, *more)
            found[name, host, *more] = (code, b"AuthorizationFailure" in answer)
            foreign = bool(more) or host.startswith("evil")
            # The error of Storage Queue has a code, which tells the guard from the front end.
            refused = (403, name == "storage")
            expected[name, host, *more] = refused if foreign else (request[3], False)

    assert found == expected


@pytest.mark.parametrize("protocol", ["admin", "service-bus-http", "service-bus", "storage-queue"])
async def test_options_is_answered_on_each_port_as_load_balancers_ask(
    protocol: str, gateways: Gateways
) -> None:
    port = port_of(await started(gateways), protocol)
    local = f"127.0.0.1:{port}"

    for target, host in (("/", local), ("*", local), (f"http://{local}/readyz", "evil.example")):
        answer = await ask(port, head("OPTIONS", target, ("Host", host)))
        assert (status(answer), b"\r\nAllow: " in answer) == (204, True)
    old = await ask(port, b"OPTIONS / HTTP/1.0\r\n\r\n")
    assert status(old) == 204
    foreign = head("OPTIONS", "http://evil.example/", ("Host", local))
    assert status(await ask(port, foreign)) == 403


async def test_with_policies_nothing_but_the_key_counts(gateways: Gateways) -> None:
    config = f"""{NAMESPACE}
[[access]]
name = "owner"
key = {{ env = "PAIRGATE_TEST_KEY" }}
rights = ["Manage"]

[[endpoints]]
protocol = "service-bus-http"
bind = "127.0.0.1:0"
"""
    gateway = await gateways.start(config)
    fields = [
        ("Host", "gateway.example"),
        ("Origin", FOREIGN),
        ("Authorization", token(gateway.port, "owner")),
        ("Content-Length", "0"),
    ]

    assert status(await ask(gateway.port, head("POST", "/orders/messages", *fields))) == 201


@pytest.mark.parametrize(
    ("fields", "refused"),
    [
        ({}, False),  # HTTP/1.0
        ({"Host": "LOCALHOST."}, False),
        ({"Host": "127.8.9.1:80"}, False),
        ({"Host": "[::1]"}, False),
        ({"Host": "localhost:80", "Origin": "http://localhost:80"}, False),  # a page of its own
        ({"Host": "localhost:80", "Origin": "https://localhost:80"}, False),
        ({"Host": "localhost:80", "Origin": "http://localhost:81"}, True),
        ({"Host": "10.0.0.1"}, True),
        ({"Host": "localhost.evil.example"}, True),
        ({"Host": "evil.example", "Origin": "http://evil.example"}, True),
        ({"Host": "[::1]evil.example"}, True),
        ({"Host": "[fe80::1]"}, True),
        ({"Host": "127.1"}, True),
    ],
)
def test_the_host_is_this_machine_and_the_origin_a_page_of_it(
    fields: dict[str, str], refused: bool
) -> None:
    guard = WebGuard(is_open=lambda: True)

    assert (guard.refusal(Headers.of(fields)) is not None) is refused


@pytest.mark.parametrize(
    ("host", "refused"),
    [
        ("pairgate:5672", False),
        ("PAIRGATE.", False),
        ("10.0.0.1", False),
        ("[fe80::1]:80", False),
        ("bus.test:80", False),
        ("evil.example", True),
        ("bus.test.evil.example", True),
        ("127.1", True),
        ("[::1]evil.example", True),
        (":80", True),
    ],
)
def test_names_that_no_other_site_has_are_allowed_in_development(host: str, refused: bool) -> None:
    guard = WebGuard(
        is_open=lambda: True, allow_local_names=True, allowed_hosts=frozenset({"bus.test"})
    )

    assert (guard.refusal(Headers.of({"Host": host})) is not None) is refused


def test_each_origin_counts() -> None:
    guard = WebGuard(is_open=lambda: True, allowed_origins=frozenset({ALLOWED}))
    fields = [("Host", "localhost"), ("Origin", ALLOWED), ("Origin", FOREIGN)]

    assert guard.refusal(Headers.of(fields)) is not None
    assert guard.refusal(Headers.of(fields[:2])) is None


OLD_BROWSER = {"User-Agent": "Mozilla/5.0 (Windows NT 10.0)"}
PARTS = ("document", "image", "iframe", "script", "object", "empty")
SITES = ("cross-site", "same-site", "same-origin", "none")


@pytest.mark.parametrize("takes_links", [False, True])
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("site", SITES)
def test_another_site_has_links_alone_and_only_to_where_they_change_nothing(
    site: str, part: str, takes_links: bool
) -> None:
    guard = WebGuard(is_open=lambda: True, takes_links=takes_links)
    fields = {"Host": "localhost", "Sec-Fetch-Site": site, "Sec-Fetch-Dest": part, **OLD_BROWSER}

    refused = guard.refusal(Headers.of(fields)) is not None

    is_foreign = site in {"cross-site", "same-site"}
    assert refused is (is_foreign and not (takes_links and part == "document"))


@pytest.mark.parametrize("name", ["Authorization", "x-ms-version", "x-ms-date"])
def test_a_browser_that_names_no_site_needs_a_header_that_no_page_can_set(name: str) -> None:
    guard = WebGuard(is_open=lambda: True)

    assert guard.refusal(Headers.of(OLD_BROWSER)) is not None
    assert guard.refusal(Headers.of({**OLD_BROWSER, name: "x"})) is None
    assert attrs.evolve(guard, takes_links=True).refusal(Headers.of(OLD_BROWSER)) is None
    assert guard.refusal(Headers.of({"User-Agent": "curl/8.5.0"})) is None


async def test_a_link_of_another_site_takes_no_message(gateways: Gateways) -> None:
    gateway = await started(gateways)
    ports = {
        name: port_of(gateway, name) for name in ("service-bus-http", "storage-queue", "admin")
    }
    send = (ports["service-bus-http"], "POST", "/orders/messages", 201)
    await asked(send, "127.0.0.1:PORT")
    link = (("Sec-Fetch-Site", "cross-site"), ("Sec-Fetch-Dest", "document"))
    values = {"sv": "2021-12-02", "se": "2126-01-01T00:00:00Z", "sp": "rp", "ss": "q", "srt": "sco"}
    name, [key] = EMULATOR_ACCOUNT.name, EMULATOR_ACCOUNT.keys
    values["sig"] = build_sas(values, account=name, queue=None, key=key)
    target = f"/devstoreaccount1/orders/messages?{urlencode(values)}&visibilitytimeout=604800"
    take = (ports["storage-queue"], head("GET", target, ("Host", "127.0.0.1")))
    followed = (ports["storage-queue"], head("GET", target, ("Host", "127.0.0.1"), *link))

    refused = await ask(*followed)
    page, _ = await asked((ports["admin"], "GET", "/", 200), "127.0.0.1:PORT", *link)
    taken = await ask(*take)

    assert (status(refused), page, status(taken)) == (403, 200, 200)
    assert b"AuthorizationFailure" in refused
    assert taken.count(b"<QueueMessage>") == 1  # it was still there
