import pytest

from gateway.domain.errors import InvalidRequest
from gateway.wire.servicebus.connection_string import parse_connection_string

GOOD = "Endpoint=sb://contoso.servicebus.windows.net/;SharedAccessKeyName=gateway"


def test_the_parts_of_a_connection_string_come_in_any_order_and_case():
    found = parse_connection_string(
        "sharedaccesskey=a+b/c==; SharedAccessKeyName=root ;ENDPOINT=sb://localhost:5673;"
        "UseDevelopmentEmulator=True;"
    )

    assert (found.host, found.port, found.key_name) == ("localhost", 5673, "root")
    assert (found.key, found.plain, found.authority) == ("a+b/c==", True, "localhost:5673")


def test_a_part_that_is_not_said_is_told_elsewhere():
    found = parse_connection_string(GOOD)

    assert (found.port, found.key, found.plain) == (None, "", False)
    assert found.authority == "contoso.servicebus.windows.net"
    assert parse_connection_string("Endpoint=sb://contoso.servicebus.windows.net").key_name == ""


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "Endpoint is missing"),
        ("Endpoint=sb:///;SharedAccessKeyName=a", "HOST"),
        ("Endpoint=sb://a:port/;SharedAccessKeyName=a", "Endpoint"),
        ("Endpoint=sb://a/queue;SharedAccessKeyName=a", "HOST"),
        ("Endpoint=sb://user@a/;SharedAccessKeyName=a", "HOST"),
        ("Endpoint=sb://user:secret/@a/;SharedAccessKeyName=a", "no valid host and port"),
        (f"{GOOD};Endpoint=sb://b", "Endpoint is given twice"),
        (f"{GOOD};Password=secret", "NAME=VALUE expected"),
        (f"{GOOD};secret", "NAME=VALUE expected"),
    ],
)
def test_a_bad_connection_string_is_refused_without_its_secrets(text, why):
    with pytest.raises(InvalidRequest, match=why) as caught:
        parse_connection_string(text)

    assert "secret" not in str(caught.value)


def test_a_key_is_in_no_text_of_ours():
    assert "hidden" not in repr(parse_connection_string(f"{GOOD};SharedAccessKey=hidden"))
