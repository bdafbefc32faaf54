"""`provision` opens each namespace once, and names the rights that are missing."""

from pathlib import Path

import pytest

from gateway.app.operations.provisioning import _not_made, provision_all
from gateway.app.runtime import Runtime
from gateway.brokers.meter import Meter
from gateway.config.file import parse
from gateway.config.options import Namespace
from gateway.domain.billing import Operation
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


class Opened(dict[str, Meter]):
    """The meters of namespaces, and in which order these were opened."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def __setitem__(self, name: str, meter: Meter) -> None:
        self.names.append(name)
        super().__setitem__(name, meter)


async def test_each_namespace_is_opened_once_and_the_primary_lists_nothing(tmp_path: Path) -> None:
    text = """
[namespaces.there]
url = "memory:"
[namespaces.here]
url = "memory:"
queues = ["orders"]
[pairing]
primary = "here"
secondary = "there"
label = "east"
backlog_queues = 1
"""
    loaded = parse(text, source="here", folder=tmp_path, environ={})
    opened = Opened()

    made = await provision_all(loaded, Runtime(meters=opened))

    assert [each.namespace for each in made] == ["there", "here"]
    assert "east/x-servicebus-transfer/0" in made[0].queues
    assert made[1].queues == ("orders",)
    assert opened.names == ["here", "there"]
    assert opened["here"].usage().operations[Operation.INSPECT] == 0
