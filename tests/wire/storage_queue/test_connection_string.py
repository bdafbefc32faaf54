"""Connection strings of Storage accounts, as the portal and the SDKs write them."""

import base64

import pytest

from gateway.domain.errors import InvalidRequest
from gateway.domain.storage_queue import EMULATOR_ACCOUNT
from gateway.wire.storage_queue.connection_string import (
    StorageConnection,
    decode_account_key,
    parse_storage_connection,
)

KEY = base64.b64encode(b"a secret key").decode()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (
            f"DefaultEndpointsProtocol=https;AccountName=contoso;AccountKey={KEY};"
            "EndpointSuffix=core.windows.net",
            StorageConnection(
                account="contoso",
                host="contoso.queue.core.windows.net",
                port=443,
                secure=True,
                key=b"a secret key",
            ),
        ),
        (
            "accountname=contoso;",
            StorageConnection(
                account="contoso", host="contoso.queue.core.windows.net", port=443, secure=True
            ),
        ),
        (
            f"AccountKey={KEY};AccountName=contoso;QueueEndpoint=http://127.0.0.1:10001/contoso/;"
            "BlobEndpoint=http://127.0.0.1:10000/contoso",
            StorageConnection(
                account="contoso",
                host="127.0.0.1",
                port=10001,
                secure=False,
                path="/contoso",
                key=b"a secret key",
            ),
        ),
        (
            "UseDevelopmentStorage=true",
            StorageConnection(
                account="devstoreaccount1",
                host="127.0.0.1",
                port=10001,
                secure=False,
                path="/devstoreaccount1",
                key=EMULATOR_ACCOUNT.keys[0],
            ),
        ),
        (
            "QueueEndpoint=https://contoso.queue.core.windows.net/;SharedAccessSignature=?sv=1&sig=2",
            StorageConnection(
                account="",
                host="contoso.queue.core.windows.net",
                port=443,
                secure=True,
                sas="sv=1&sig=2",
            ),
        ),
    ],
)
def test_connection_strings_are_read(text: str, found: StorageConnection) -> None:
    assert parse_storage_connection(text) == found


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "AccountName is missing"),
        ("nonsense", "NAME=VALUE expected"),
        ("Account=a", "NAME one of DefaultEndpointsProtocol"),
        ("AccountName=contoso;AccountName=contoso", "AccountName is given twice"),
        ("AccountName=Contoso", "AccountName: 3 to 24 lowercase letters"),
        ("AccountName=contoso;AccountKey=secret!", "AccountKey: the account's key in Base64"),
        ("AccountName=contoso;DefaultEndpointsProtocol=ftp", "http\\(s\\)://HOST"),
        ("AccountName=contoso;QueueEndpoint=http://a?b", "http\\(s\\)://HOST"),
        ("AccountName=contoso;QueueEndpoint=http://a:x/", "QueueEndpoint: "),
        ("AccountName=contoso;QueueEndpoint=http://u:secret@a/", "no user expected"),
        ("AccountName=contoso;QueueEndpoint=http://u:secret/@a/", "no valid host and port"),
        ("SharedAccessSignature=sig=secret", "QueueEndpoint is missing"),
        ("UseDevelopmentStorage=true;AccountName=contoso", "nothing expected beside"),
    ],
)
def test_a_mistake_is_named_and_no_secret_shown(text: str, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said) as caught:
        parse_storage_connection(text)

    assert "secret" not in str(caught.value)


def test_a_value_shows_no_secret() -> None:
    shown = repr(parse_storage_connection(f"AccountName=contoso;AccountKey={KEY}"))

    assert "a secret key" not in shown
    assert decode_account_key("", "key") == b""
