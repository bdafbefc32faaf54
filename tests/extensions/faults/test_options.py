"""Faults are allowed only where no real work can meet them."""

from pathlib import Path

import pytest

from gateway.config.errors import ConfigError
from gateway.config.file import parse

OWN = '[namespaces.test]\nurl = "memory:"\n'
HERE = '[[endpoints]]\nprotocol = "service-bus"\nbind = "127.0.0.1:5672"\n'
ACCESS = '[[access]]\nname = "a"\nkey = { env = "KEY" }\nrights = ["Manage"]\n'
BEYOND = HERE.replace("127.0.0.1", "0.0.0.0") + ACCESS
ALLOWED = "[faults]\nallowed = true\n"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (OWN + HERE + ALLOWED, ""),
        (OWN.replace("memory:", "embedded:test.db") + HERE + ALLOWED, ""),
        (OWN + BEYOND + ALLOWED + "allow_remote = true\n", ""),
        (OWN + BEYOND, ""),
        (OWN + BEYOND + ALLOWED, "0.0.0.0:5672 is reachable from other machines"),
        (
            OWN.replace("memory:", "amqp://x") + HERE + ALLOWED,
            "needs an embedded namespace",
        ),
        ("workers = 2\n" + OWN + HERE + ALLOWED, "needs one process"),
        (
            OWN
            + '[namespaces.west]\nurl = "embedded:west.db"\n'
            + '[pairing]\nprimary = "test"\nsecondary = "west"\nlabel = "test"\n'
            + HERE
            + ALLOWED,
            "needs a namespace without [pairing]",
        ),
    ],
)
def test_faults_are_refused_in_front_of_others(text: str, problem: str, tmp_path: Path) -> None:
    told = ""
    try:
        parse(text, source="test", folder=tmp_path, environ={"KEY": "x" * 40})
    except ConfigError as error:
        told = str(error)

    assert ("faults.allowed" in told) is bool(problem), told
    assert problem in told
