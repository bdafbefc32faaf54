"""A signature is good for the very values that were signed, and for no others."""

import pytest
from trio.testing import MockClock

from gateway.domain.errors import NotAuthorized
from gateway.wire.servicebus.sas import parse_sas as parse_token
from gateway.wire.servicebus.sas import sign_sas
from gateway.wire.storage_queue.address import parameters_of
from gateway.wire.storage_queue.errors import StorageRefusal
from gateway.wire.storage_queue.sas import build_sas, parse_sas
from tests.frontends.storage_client import ACCOUNT, KEY, code, open_client

SOON = "2026-01-01T00:10:00Z"
HTTPS_ONLY = {"sv": "2021-08-06", "ss": "q", "srt": "sco", "sp": "r", "se": SOON, "spr": "https"}


def query(values: dict[str, str], sig: str) -> str:
    pairs = {**values, "sig": sig}
    return "&".join(
        f"{name}={value.replace('+', '%2B').replace(chr(10), '%0A')}"
        for name, value in pairs.items()
    )


async def test_a_line_feed_makes_no_other_signature_of_one(autojump_clock: MockClock) -> None:
    sig = build_sas(HTTPS_ONLY, account=ACCOUNT, queue="orders", key=KEY)
    shifted = {name: value for name, value in HTTPS_ONLY.items() if name not in {"sv", "spr"}}
    shifted["spr"] = "https\n2021-08-06"
    async with open_client() as client:
        for values, found in (
            (HTTPS_ONLY, "AuthorizationProtocolMismatch"),
            (shifted, "AuthenticationFailed"),
        ):
            response = await client.ask(
                "GET", f"/orders/messages?peekonly=true&{query(values, sig)}"
            )
            assert response.status == 403
            assert code(response) == found


@pytest.mark.parametrize("character", ["\n", "\r", "\0", "\t", "\x1f", "\x7f", "\x85"])
@pytest.mark.parametrize("name", ["sv", "ss", "srt", "sp", "st", "se", "sip", "spr", "si", "ses"])
def test_no_value_of_a_signature_of_storage_holds_a_control_character(
    name: str, character: str
) -> None:
    encoded = "".join(f"%{byte:02x}" for byte in character.encode())
    values = {**HTTPS_ONLY, name: f"{HTTPS_ONLY.get(name, '')}{encoded}"}
    text = "&".join(f"{each}={value}" for each, value in values.items())

    with pytest.raises(StorageRefusal) as refused:
        parse_sas(parameters_of(f"/?{text}&sig=c2ln"))

    assert refused.value.code == "AuthenticationFailed"


@pytest.mark.parametrize(
    "change",
    [
        {"spr": "http"},
        {"spr": "https,ftp"},
        {"spr": "anything"},
        {"sv": ""},
        {"sv": "1"},
        {"sv": "2014-02-14"},
        {"sv": "2021-08-06x"},
        {"sv": "tomorrow"},
    ],
)
def test_unknown_protocols_and_versions_of_a_signature_are_refused(change: dict[str, str]) -> None:
    text = "&".join(f"{name}={value}" for name, value in {**HTTPS_ONLY, **change}.items())

    with pytest.raises(StorageRefusal) as refused:
        parse_sas(parameters_of(f"/?{text}&sig=c2ln"))

    assert refused.value.code == "AuthenticationFailed"


def test_a_signature_without_a_version_is_refused() -> None:
    values = {name: value for name, value in HTTPS_ONLY.items() if name != "sv"}
    text = "&".join(f"{name}={value}" for name, value in values.items())

    with pytest.raises(StorageRefusal):
        parse_sas(parameters_of(f"/?{text}&sig=c2ln"))


@pytest.mark.parametrize("character", ["\n", "\r", "\0", "\t", "\x1f", "\x7f"])
def test_no_value_of_a_token_of_service_bus_holds_a_control_character(character: str) -> None:
    raw = sign_sas("https://east.example/orders", "key", "secret", 1795219200)
    encoded = f"%{ord(character):02x}"

    assert parse_token(raw)
    for name in ("sr", "se", "skn", "sig"):
        for inside in (character, encoded):
            with pytest.raises(NotAuthorized):
                parse_token(raw.replace(f"{name}=", f"{name}={inside}"))
    for runtime in (f"{raw}{character}", raw.replace(" ", f" {character}")):
        with pytest.raises(NotAuthorized):
            parse_token(runtime)
