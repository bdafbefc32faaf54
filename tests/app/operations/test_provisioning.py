"""`provision` names the rights that are missing."""

import pytest

from gateway.app.operations.provisioning import _not_made
from gateway.config.options import Namespace
from gateway.domain.errors import LoginRefused, NotAuthorized, Unreachable


def test_a_refused_login_and_a_lost_namespace_have_remedies_of_their_own() -> None:
    namespace = Namespace(name="north", url="rabbitmq://gateway@rabbit/pairgate")
    refused = str(_not_made(namespace, LoginRefused("Login was refused (403)")))
    lost = str(_not_made(namespace, Unreachable("Connection refused")))

    assert refused.endswith("check the user in namespaces.north.url, and its password")
    assert lost.endswith(
        "check whether the namespace runs, and check its address, DNS and firewalls"
    )


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
