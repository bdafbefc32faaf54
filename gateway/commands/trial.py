"""`pairgate demo` and `certs`, for those who try it out."""

import sys
from pathlib import Path

import click
from rich.text import Text

from gateway.app.certificates import make_certificates
from gateway.app.outside import Outside
from gateway.commands.terminal import Invocation, add_json, command, printable
from gateway.demo.screen import main as show_demo


@click.command()
@add_json
def demo(as_json: bool) -> None:
    """Show the main job: producers, an outage, the backlog, the syphon, and the verdict."""
    sys.exit(show_demo(as_json=as_json))


@command
@click.argument("folder", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
def certs(invocation: Invocation, folder: Path) -> None:
    """Make a throw-away authority in DIR, and certificates of it for localhost and a client."""
    files = make_certificates(folder, Outside.now())
    lines = [Text(printable(str(file))) for file in files]
    invocation.print({file.name: str(file) for file in files}, *lines)
