"""A command asks the gateway that runs here with the right key."""

from base64 import b64decode
from pathlib import Path

from gateway.app.operations.admin_endpoint import AdminChoice, admin_at
from gateway.config.file import parse
from gateway.domain.access import Right

TEXT = """
[namespaces.here]
url = "memory:"

[[access]]
name = "shop"
key = { env = "FIRST" }
rights = ["Listen"]
entities = ["orders"]

[[access]]
name = "operators"
key = { env = "SECOND" }
rights = ["Listen"]
"""


def test_a_policy_for_everything_is_taken_before_one_for_some_entities() -> None:
    environ = {"FIRST": "first", "SECOND": "second"}
    config = parse(TEXT, source="x.toml", folder=Path("/nowhere"), environ=environ).config

    header = admin_at(config, "http://127.0.0.1:9640", "--url", AdminChoice()).authorization(
        Right.LISTEN
    )

    assert header is not None
    assert b64decode(header.removeprefix("Basic ")) == b"operators:second"
