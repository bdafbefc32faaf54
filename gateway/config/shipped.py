"""The files of conf/, which are part of the package."""

from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final

DEFAULT_NAME: Final = "pairgate.toml"
_SUFFIX: Final = ".toml"


def default_text() -> str:
    """Every option with its default and a comment: the configuration of `serve` without a file."""
    return (_folder() / DEFAULT_NAME).read_text("utf-8")


def example_names() -> list[str]:
    """
    The names of the examples and of the units for systemd, sorted; configurations are named without
    `.toml`.
    """
    return sorted(_examples())


def example_text(name: str) -> str:
    """The example with that name, which is one of `example_names`."""
    return _examples()[name].read_text("utf-8")


def _examples() -> dict[str, Traversable]:
    files_of = [(_folder() / name).iterdir() for name in ("examples", "systemd")]
    return {file.name.removesuffix(_SUFFIX): file for each in files_of for file in each}


def _folder() -> Traversable:
    return files("gateway") / "conf"
