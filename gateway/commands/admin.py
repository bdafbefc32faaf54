"""Options that select an admin endpoint, the credentials for it, and control calls to it."""

import os
import sys
from collections.abc import Callable, Sequence
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import attrs
import click

from gateway.app.failure import ExitCode, Failure
from gateway.app.operations.admin_choice import AdminChoice, AdminTokenSource, tls_files
from gateway.commands.terminal import Invocation, add_port_offset, printable, run
from gateway.config.endpoints import PROCESSES, SERVE

if TYPE_CHECKING:
    from gateway.config.options import Config
    from gateway.wire.pairgate.control_call import ControlCall

Q = TypeVar("Q")
A = TypeVar("A")

PASSWORD: Final = "PAIRGATE_PASSWORD"
TOKEN: Final = "PAIRGATE_TOKEN"

_file = click.Path(dir_okay=False, path_type=Path)
_CERTIFICATE: Final = (
    click.option(
        "--cert",
        "--certificate",
        "cert",
        type=_file,
        metavar="FILE",
        help="The client certificate.",
    ),
    click.option("--key", type=_file, metavar="FILE", help="The private key of --cert."),
)
_OPTIONS: Final = (
    click.option(
        "--ca", type=_file, metavar="FILE", help="The authority that signed its certificate."
    ),
    *_CERTIFICATE,
    click.option(
        "--user",
        metavar="NAME",
        help=f"The name of an access policy. Its key is read from ${PASSWORD}, or prompted for.",
    ),
    click.option(
        "--token-file",
        type=_file,
        metavar="FILE",
        help="A file with a bearer token of an identity provider, read for each request."
        f" ${TOKEN} may have the token instead.",
    ),
)
_add_url = click.option(
    "--url",
    metavar="URL",
    help="The admin endpoint: http(s)://HOST[:PORT] or unix:PATH. Default: the configuration's.",
)
add_process = click.option(
    "--process",
    type=click.Choice(PROCESSES),
    default=SERVE,
    show_default=True,
    help="The process that is meant, by its command; --url takes any.",
)


def add_certificate(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options of a client certificate alone: `cert` and `key`."""
    for add in reversed(_CERTIFICATE):
        function = add(function)
    return function


def add_admin(function: Callable[..., None]) -> Callable[..., None]:
    """
    Add the options that select any process with an admin endpoint; the function gets an
    `AdminChoice` as `admin`.
    """
    return add_process(add_gateway(function))


def add_gateway(function: Callable[..., None]) -> Callable[..., None]:
    """Add the same options without `--process`, for a command that only a gateway can answer."""
    return _add_url(add_admin_access(function))


def add_admin_access(function: Callable[..., None]) -> Callable[..., None]:
    """Add the same options without `--url`, for a command that has URLs of its own."""

    @wraps(function)
    def wrapper(invocation: Invocation, **rest: Any) -> None:
        ca, cert, key = (rest.pop(name, None) for name in ("ca", "cert", "key"))
        user, token_file = rest.pop("user"), rest.pop("token_file")
        admin = AdminChoice(
            port_offset=rest.pop("port_offset"),
            process=rest.pop("process", SERVE),
            url=rest.pop("url", None),
            tls=tls_files(ca=ca, certificate=cert, key=key),
            credentials=None if user is None else f"{user}:{_password(user)}",
            token=_token(user, token_file),
        )
        function(invocation, admin=admin, **rest)

    named: Callable[..., None] = add_port_offset(wrapper)
    for add in reversed(_OPTIONS):
        named = add(named)
    return named


def with_keys_when_used(invocation: Invocation, admin: AdminChoice) -> tuple["Config", AdminChoice]:
    """
    The configuration without its secrets, and the choice with which the keys of its access policies
    are read once one of them is used.
    """
    read = partial(invocation.read_with, "access")
    return invocation.read_with(), attrs.evolve(admin, read_access=read)


def give(
    invocation: Invocation,
    admin: AdminChoice,
    call: "ControlCall[Q, A]",
    request: Q,
    lines: Callable[[str, A], Sequence[str]],
    seconds: float | None = None,
) -> A:
    """
    Make the call; print the address of the endpoint and the answer as JSON, or the `lines` of both.
    `seconds` as in `asking.give`.

    Raises:
        Failure: as `asking.give`.
    """
    # Imported here: a probe, which makes no call, starts without them.
    from rich.text import Text

    from gateway.app.operations import asking
    from gateway.wire.pairgate.admin_json import value_of

    config, admin = with_keys_when_used(invocation, admin)
    answer: A
    address, answer = run(asking.give, config, admin, call, request, seconds)
    value = {"gateway": address, **value_of(answer)}
    invocation.print(value, *(Text(printable(line)) for line in lines(address, answer)))
    return answer


def _token(user: str | None, file: Path | None) -> AdminTokenSource | None:
    """The token of the file, else of the environment unless a name was given; None: neither."""
    if user is not None and file is not None:
        raise Failure("--user and --token-file: one of them expected", ExitCode.WRONG)
    if file is not None:
        return AdminTokenSource(file=file)
    text = os.environ.get(TOKEN, "")
    return AdminTokenSource(text=text) if text and user is None else None


def _password(user: str) -> str:
    """
    The password from the environment, else from the terminal; never from an argument, which other
    users may see.
    """
    if PASSWORD not in os.environ:
        if not sys.stdin.isatty():
            raise Failure(f"--user: put the key of {user} into ${PASSWORD}", ExitCode.WRONG)
        # Processes that this command starts find it there, too.
        os.environ[PASSWORD] = click.prompt(f"Key of {user}", hide_input=True, err=True)
    return os.environ[PASSWORD].rstrip("\r\n")  # as of a secret of the configuration
