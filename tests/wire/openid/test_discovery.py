"""The discovery document of an identity provider."""

import json

import pytest

from gateway.wire.openid.keys import parse_discovery

ISSUER = "https://login.example.net"
PLACE = f"{ISSUER}/authorize"


@pytest.mark.parametrize(
    ("endpoint", "taken"),
    [
        (PLACE, PLACE),
        (f"{PLACE}\r\nX-Other: 1", None),
        ("https://login.exämple.net", None),
        (5, None),
        (None, None),
    ],
)
def test_the_place_where_users_sign_in_fits_into_a_header(
    endpoint: object, taken: str | None
) -> None:
    document = {"issuer": ISSUER, "jwks_uri": "u", "authorization_endpoint": endpoint}

    found = parse_discovery(json.dumps(document).encode(), ISSUER)

    assert found.authorization_endpoint == taken
