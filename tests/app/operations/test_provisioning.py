"""`provision` names the rights that are missing."""

import pytest

from gateway.app.operations.provisioning import _not_made
from gateway.config.options import Namespace
from gateway.domain.errors import NotAuthorized


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("rabbitmq://gateway@rabbit/pairgate", "permissions configure, write and read"),
        ("servicebus+http://key@east", "a key with the right Manage"),
    ],
)
def test_missing_rights_are_called_as_their_broker_calls_them(url: str, said: str) -> None:
    failure = _not_made(Namespace(name="north", url=url), NotAuthorized("refused (403)"))

    assert said in str(failure)
