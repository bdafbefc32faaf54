"""`pairgate demo` and `certs`, for trying Pairgate out."""

import sys
from pathlib import Path

import click
from rich.text import Text

from gateway.app.operations.certificates import make_certificates
from gateway.app.runtime import Runtime
from gateway.commands.terminal import Invocation, add_json, command, printable
from gateway.demo.screen import main as show_demo


@click.command()
@add_json
def demo(as_json: bool) -> None:
    """Show a failover: producers, an outage, the backlog, the syphon, and the checker's verdict."""
    sys.exit(show_demo(as_json=as_json))


@command
@click.argument("folder", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
def certs(invocation: Invocation, folder: Path) -> None:
    """Create a throw-away authority in DIR, with certificates for localhost and a client."""
    files = make_certificates(folder, Runtime.now())
    lines = [Text(printable(str(file))) for file in files]
    invocation.print({file.name: str(file) for file in files}, *lines)
