"""
Options that several commands share: a namespace (the running gateway, or a configured one
directly), and the type of a body.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import click

from gateway.app.operations.admin_choice import tls_files
from gateway.app.operations.typed_message import BodyType
from gateway.app.operations.ways_in import NamespaceChoice
from gateway.commands.admin import add_certificate
from gateway.commands.terminal import Invocation, add_port_offset
from gateway.config.errors import ConfigError
from gateway.config.options import Config

Command = TypeVar("Command", bound=Callable[..., Any])


def _config_of(context: click.Context) -> Config | None:
    """The configuration of the command line that is being completed; None: it can't be read."""
    with suppress(ConfigError):
        return Invocation.of(context.params.get("config"), as_json=False).read_with()
    return None


def complete_entity(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[str]:
    """
    The configured entities whose names begin with `incomplete`. No request is made to a gateway,
    since a shell doesn't wait.
    """
    config = _config_of(context)
    names = () if config is None else config.entity_names
    return [name for name in names if name.startswith(incomplete)]


def complete_namespace(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[str]:
    """The configured namespaces whose names begin so."""
    config = _config_of(context)
    names = [] if config is None else sorted(config.namespaces)
    return [name for name in names if name.startswith(incomplete)]


def add_body_type(help_text: str) -> Callable[[Command], Command]:
    """
    Add the options `--type` and `--schema`; the function gets the value of a `BodyType` as `kind`,
    and a path or None as `schema`.
    """

    def add(function: Command) -> Command:
        return _body_type(help_text)(_add_schema(function))

    return add


_add_schema = click.option(
    "--schema",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The JSON schema that bodies must fit; implies --type json.",
)


def _body_type(help_text: str) -> Callable[[Command], Command]:
    return click.option(
        "--type",
        "kind",
        type=click.Choice([kind.value for kind in BodyType]),
        default=BodyType.BYTES.value,
        show_default=True,
        help=help_text,
    )


_add_namespace = click.option(
    "--namespace",
    metavar="NAME",
    shell_complete=complete_namespace,
    help="Use this namespace directly. Default: the running gateway, else the primary.",
)
_add_ca = click.option(
    "--ca",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The authority of the gateway's certificate. Default: that certificate.",
)


def add_place(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options; the function gets a `NamespaceChoice` as `place`."""

    @wraps(function)
    def wrapper(invocation: Invocation, **rest: Any) -> None:
        place = NamespaceChoice(
            namespace=rest.pop("namespace"),
            port_offset=rest.pop("port_offset"),
            tls=tls_files(ca=rest.pop("ca"), certificate=rest.pop("cert"), key=rest.pop("key")),
            read_with=invocation.read_with,
        )
        function(invocation, place=place, **rest)

    return _add_namespace(_add_ca(add_port_offset(add_certificate(wrapper))))
