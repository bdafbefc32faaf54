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
    """The names of the examples, sorted; configurations are named without `.toml`."""
    found = (_folder() / "examples").iterdir()
    return sorted(file.name.removesuffix(_SUFFIX) for file in found)


def example_text(name: str) -> str:
    """The example with that name, which is one of `example_names`."""
    examples = _folder() / "examples"
    file = examples / f"{name}{_SUFFIX}"
    return (file if file.is_file() else examples / name).read_text("utf-8")


def _folder() -> Traversable:
    return files("gateway") / "conf"
