"""Texts of configurations, how tests read them, and the secrets that they name."""

from pathlib import Path

import pytest

from gateway.config.errors import ConfigError
from gateway.config.file import parse
from gateway.config.options import Config

SECRET = "a secret of sixteen bytes"
IN_BASE64 = "YSBzZWNyZXQgb2Ygc2l4dGVlbiBieXRlcw=="

PAIR = """
[namespaces.east]
url = "embedded:east.db"
[namespaces.west]
url = "embedded:west.db"
[pairing]
primary = "east"
secondary = "west"
label = "east"
"""
UNLABELLED = PAIR.replace('label = "east"', "")
ONE = """
[namespaces.here]
url = "memory:"
"""
ENVIRON = {
    "KEY": SECRET,
    "OTHER_KEY": SECRET[::-1],
    "LONG_KEY": SECRET * 2,
    "BASE64": IN_BASE64,
}


def config(text: str, folder: Path = Path("/nowhere")) -> Config:
    return parse(text, source="x.toml", folder=folder, environ=ENVIRON).config


def problems(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        config(text)
    assert SECRET not in str(caught.value)
    return [line.removeprefix("x.toml: ") for line in caught.value.problems]


def warnings(text: str, folder: Path) -> tuple[str, ...]:
    return parse(text, source="x.toml", folder=folder, environ=ENVIRON).warnings
