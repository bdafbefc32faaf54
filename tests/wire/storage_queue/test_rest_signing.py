"""Signatures: those of both SDKs' own signers pass, and forged ones don't."""

import base64
import json
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire.http.messages import Headers, Request
from gateway.wire.storage_queue.address import build_target, locate, parameters_of
from gateway.wire.storage_queue.errors import StorageRefusal
from gateway.wire.storage_queue.sas import build_sas, parse_sas, parse_time
from gateway.wire.storage_queue.signing import (
    collation,
    parse_authorization,
    sign,
    signed,
    strings_to_sign,
)

VECTORS = json.loads((Path(__file__).parent / "vectors.json").read_text())
ACCOUNT = "contoso"
KEY = base64.b64decode("YSBzZWNyZXQgb2Ygc2l4dGVlbiBieXRlcw==")
REQUESTS = [
    pytest.param(each, id=f"{sdk}-{number}")
    for sdk, found in VECTORS.items()
    for number, each in enumerate(found["requests"])
]
SIGNATURES = [
    pytest.param(text, id=f"{sdk}-{number}")
    for sdk, found in VECTORS.items()
    for number, text in enumerate(found["sas"])
]


def request_of(recorded: dict[str, Any]) -> Request:
    url = urlsplit(recorded["url"])
    target = f"{url.path or '/'}?{url.query}" if url.query else url.path or "/"
    headers = Headers.of({"Host": url.netloc, **recorded["headers"]})
    return Request(method=recorded["method"], target=target, headers=headers)


def passes(request: Request, key: bytes = KEY) -> bool:
    claim = parse_authorization(request.headers.get("Authorization") or "")
    version = request.headers.get("x-ms-version")
    strings = strings_to_sign(request, claim.scheme, ACCOUNT, version)
    return claim.digest in [sign(string, key) for string in strings]


@pytest.mark.parametrize("recorded", REQUESTS)
def test_a_request_that_an_sdk_has_signed_passes(recorded: dict[str, Any]) -> None:
    request = request_of(recorded)

    assert locate(request, {ACCOUNT}, secure=False).account == ACCOUNT
    assert passes(request)
    assert not passes(request, b"another key")


@pytest.mark.parametrize("recorded", REQUESTS)
def test_nothing_that_is_signed_can_be_changed(recorded: dict[str, Any]) -> None:
    request = request_of(recorded)
    path, _, query = request.target.partition("?")

    assert not passes(attrs.evolve(request, method="PATCH"))
    assert not passes(attrs.evolve(request, target=f"{path}x?{query}"))
    assert not passes(attrs.evolve(request, target=f"{request.target}&more=1"))
    extra = Headers((*request.headers.items, ("x-ms-extra", "1")))
    assert not passes(attrs.evolve(request, headers=extra))


@pytest.mark.parametrize("text", SIGNATURES)
def test_a_request_that_an_sdk_has_signed_for_somebody_else_passes(text: str) -> None:
    sas = parse_sas(parameters_of(f"/?{text}"))
    assert sas is not None

    assert sign(sas.string_to_sign(ACCOUNT, "orders-1"), KEY) == sas.digest
    if not sas.of_account:
        assert sign(sas.string_to_sign(ACCOUNT, "orders-2"), KEY) != sas.digest
    again = build_sas(sas.values, account=ACCOUNT, queue="orders-1", key=KEY)
    assert base64.b64decode(again) == sas.digest


@given(
    st.sampled_from(["GET", "PUT", "POST", "DELETE"]),
    st.lists(st.text(min_size=1, max_size=8), max_size=3),
    st.dictionaries(st.sampled_from(["comp", "restype", "marker"]), st.text(max_size=8)),
    st.booleans(),
)
def test_a_request_that_we_sign_passes(
    method: str, path: list[str], parameters: dict[str, str], lite: bool
) -> None:
    fields = {"Host": "contoso.queue.example", "x-ms-date": "now", "x-ms-version": "2021-02-12"}
    target = build_target(*path, **parameters)
    request = Request(method=method, target=target, headers=Headers.of(fields))

    assert passes(signed(request, account=ACCOUNT, key=KEY, lite=lite))


def test_without_a_version_the_first_version_s_signature_passes() -> None:
    fields = {"Host": "contoso.queue.example", "x-ms-date": "Mon, 27 Oct 2008 17:00:25 GMT"}
    request = Request(method="PUT", target="/orders/messages", headers=Headers.of(fields))
    lite = signed(request, account=ACCOUNT, key=KEY, lite=True).headers.get("Authorization") or ""
    old = ("Authorization", lite.replace("SharedKeyLite", "SharedKey"))

    request = attrs.evolve(request, headers=Headers((*request.headers.items, old)))
    assert passes(request)
    later = Headers((*request.headers.items, ("x-ms-version", "2011-08-18")))
    assert not passes(attrs.evolve(request, headers=later))


@pytest.mark.parametrize(("version", "good"), [("2014-02-14", True), ("2015-02-21", False)])
def test_old_versions_sign_the_length_of_no_body_as_zero(version: str, good: bool) -> None:
    fields = {"Content-Length": "0", "x-ms-date": "now", "x-ms-version": version}
    string = f"PUT\n\n\n0\n\n\n\n\n\n\n\n\nx-ms-date:now\nx-ms-version:{version}\n/{ACCOUNT}/orders"
    digest = base64.b64encode(sign(string, KEY)).decode()
    headers = Headers.of({**fields, "Authorization": f"SharedKey {ACCOUNT}:{digest}"})

    assert passes(Request(method="PUT", target="/orders", headers=headers)) is good


def test_the_secondary_may_be_signed_with_and_without_its_name() -> None:
    fields = {"Host": "127.0.0.1", "x-ms-date": "now", "x-ms-version": "2021-02-12"}
    for path in ("/contoso-secondary/", "/contoso/"):
        request = Request(method="GET", target=f"{path}?comp=list", headers=Headers.of(fields))
        sent = attrs.evolve(
            signed(request, account=ACCOUNT, key=KEY), target="/contoso-secondary/?comp=list"
        )
        assert passes(sent)


def test_header_names_are_in_the_order_of_the_service() -> None:
    names = ["x-ms-meta-a-b", "x-ms-meta-ab", "x-ms-meta-a_b", "x-ms-meta-a1", "x-ms-date"]

    assert sorted(names, key=collation) == [
        "x-ms-date",
        "x-ms-meta-a_b",
        "x-ms-meta-a1",
        "x-ms-meta-ab",
        "x-ms-meta-a-b",
    ]


@pytest.mark.parametrize(
    "text",
    ["", "SharedKey", "SharedKey contoso", "Bearer a:b", "SharedKey :c2ln", "x contoso:c2ln"],
)
def test_an_invalid_authorization_is_refused(text: str) -> None:
    with pytest.raises(StorageRefusal):
        parse_authorization(text)


@pytest.mark.parametrize("digest", ["c2ln!", "c2l", "", "c2ln c2ln", "c2lnZR=="])
def test_each_signature_has_one_text(digest: str) -> None:
    with pytest.raises(StorageRefusal):
        parse_authorization(f"SharedKey contoso:{digest}")


def test_a_parameter_may_be_there_once() -> None:
    with pytest.raises(StorageRefusal):
        parse_sas(parameters_of("/?sv=1&sig=c2ln&sig=c2ln"))
    assert parse_sas(parameters_of("/?sv=1")) is None


@pytest.mark.parametrize(
    "text",
    ["2026-01-01T00:00:00Z", "2026-01-01T00:00:00.0000000Z", "2026-01-01", "2026-01-01T00:00Z"],
)
def test_times_have_several_forms(text: str) -> None:
    date = parse_time("se", text)

    assert date is not None
    assert date.isoformat() == "2026-01-01T00:00:00+00:00"
    with pytest.raises(StorageRefusal):
        parse_time("se", f"{text}!")
