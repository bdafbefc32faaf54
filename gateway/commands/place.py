"""Options that select a namespace: the running gateway, or a configured one directly."""

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import click

from gateway.app.operations.admin_endpoint import tls_files
from gateway.app.operations.ways_in import Place
from gateway.commands.admin import add_certificate
from gateway.commands.terminal import Invocation, add_port_offset

_add_namespace = click.option(
    "--namespace",
    metavar="NAME",
    help="Use this namespace directly. Default: the running gateway, else the primary.",
)
_add_ca = click.option(
    "--ca",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The authority of the gateway's certificate. Default: that certificate.",
)


def add_place(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options; the function gets a `Place` as `place`."""

    @wraps(function)
    def wrapper(invocation: Invocation, **rest: Any) -> None:
        place = Place(
            namespace=rest.pop("namespace"),
            port_offset=rest.pop("port_offset"),
            tls=tls_files(ca=rest.pop("ca"), certificate=rest.pop("cert"), key=rest.pop("key")),
        )
        function(invocation, place=place, **rest)

    return _add_namespace(_add_ca(add_port_offset(add_certificate(wrapper))))
