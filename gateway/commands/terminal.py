"""Commands read their configuration, print for people or machines, and fail."""

import json
import os
import select
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial, update_wrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

import attrs
import click

from gateway.app.failure import ExitCode, Failure
from gateway.config.errors import ConfigError
from gateway.config.values import seconds
from gateway.domain.errors import GatewayError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from gateway.config.file import Loaded
    from gateway.config.options import Config

T = TypeVar("T")

LAST_WORDS_SECONDS: Final = 1.0
PATIENCE: Final = 2.0  # seconds after which a terminal shows that a command still works
UNLIMITED_COLUMNS: Final = 10_000

add_json = click.option("--json", "as_json", is_flag=True, help="Print JSON, for machines.")
add_config = click.option(
    "--config",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Default: pairgate.toml in this folder, else a pair of two stores below it.",
)
_add_configs = click.option(
    "--config",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    multiple=True,
    help="Default: pairgate.toml in this folder, else a pair of two stores below it."
    " Repeat it to order several gateways.",
)
add_reason = click.option(
    "--reason",
    default="",
    metavar="TEXT",
    help="For the log, the status and other operators.",
)
add_port_offset = click.option(
    "--port-offset", type=int, default=0, metavar="N", help="Move all ports by N."
)
add_adopt = click.option(
    "--adopt",
    "adopted",
    metavar="FINGERPRINT",
    multiple=True,
    help="Take over the backlog of a primary that the pair's primary replaces for good.",
)


@attrs.frozen
class Invocation:
    """
    A call of a command: its common options, its configuration and its output.

    An import that a command may do without is where it is used: a probe starts without it.
    """

    config: Path | None
    as_json: bool
    further: tuple[Path, ...] = ()  # configurations, of an order to several gateways

    @classmethod
    def of(cls, config: Path | tuple[Path, ...] | None, *, as_json: bool) -> "Invocation":
        """The call with the value of `--config`, which some commands take several times."""
        if not isinstance(config, tuple):
            return cls(config, as_json)
        return cls(config[0] if config else None, as_json, config[1:])

    def read(self, binds: Sequence[str] = (), queues: Sequence[str] = ()) -> "Loaded":
        """The configuration, with these addresses of endpoints (`config.binds`) and queues."""
        from gateway.config.file import load

        return load(self.config, environ=os.environ, here=Path.cwd(), binds=binds, queues=queues)

    def read_with(self, *tables: str) -> "Config":
        """The configuration with the secrets of these tables alone: no others may be used."""
        from gateway.config.file import load

        return load(self.config, environ=os.environ, here=Path.cwd(), secrets=tables).config

    def print(self, value: Any, *lines: "RenderableType") -> None:
        """Print the value for machines, or the lines for people."""
        if self.as_json:
            click.echo(json.dumps(value))
            return
        from rich.console import Console

        # Without a terminal nothing is cut: a program may read the lines.
        console = Console(soft_wrap=True, width=None if sys.stdout.isatty() else UNLIMITED_COLUMNS)
        for line in lines:
            console.print(line)


@contextmanager
def waiting(
    text: str, *, shown: bool = True, console: "Console | None" = None, after: float = PATIENCE
) -> Iterator[None]:
    """
    Show on the terminal that the block still runs, from `after` seconds on. Without a terminal at
    standard error nothing is shown.
    """
    if not shown or (console is None and not sys.stderr.isatty()):
        yield
        return
    # Imported here: other commands start faster without it.
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TimeElapsedColumn

    at = Console(stderr=True) if console is None else console
    bar = Progress(text, BarColumn(), TimeElapsedColumn(), console=at, transient=True)
    bar.add_task("", total=None)
    timer = threading.Timer(after, bar.start)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        bar.stop()


add_yes = click.option(
    "--yes", is_flag=True, help="Don't ask: for scripts, which have no terminal."
)


def ask_consent(consequence: str, name: str) -> None:
    """
    Print what the command will do; return when the user has typed the name of what it does that to.

    Raises:
        Failure: the user has typed something else, or there is no terminal. Nothing was done.
    """
    if not sys.stdin.isatty():
        text = f"{consequence}\nThere is no terminal to ask at: add --yes"
        raise Failure(text, ExitCode.WRONG)
    click.echo(printable(consequence), err=True)
    typed = click.prompt(f"Type {name} to go on", default="", show_default=False, err=True)
    if typed != name:
        raise Failure(f"{typed!r} isn't {name!r}: nothing was done")


class Integer(click.IntRange):
    """An integer within limits, which the help shows behind it."""

    name = "integer"


class Number(click.FloatRange):
    """A number within limits, which the help shows behind it."""

    name = "number"


class Duration(click.ParamType[float]):
    """A number of seconds, from `250ms`, `10s`, `5m`; `above_zero`: 0 is refused."""

    name = "duration"

    def __init__(self, *, above_zero: bool = False) -> None:
        self.above_zero = above_zero

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        try:
            found = seconds(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if self.above_zero and not found:
            self.fail(f"a duration above 0 expected, found {value!r}", param, ctx)
        return found


def run(function: Callable[..., Awaitable[T]], *arguments: Any, **options: Any) -> T:
    """Run the function to its end in Trio."""
    import trio

    return trio.run(partial(function, *arguments, **options))


def run_until_interrupted(function: Callable[..., Awaitable[T]], *given: Any, **options: Any) -> T:
    """
    As `run`; Ctrl-C and SIGTERM cancel the function.

    Raises:
        Interrupted: a signal has ended it.
        Failure: as the function.
    """
    import trio

    return trio.run(_interruptible, partial(function, *given, **options))


class Interrupted(Exception):
    """A signal has ended a command that runs until then."""


async def _interruptible(function: Callable[[], Awaitable[T]]) -> T:
    import trio

    from gateway.app.process import cancel_at_signal

    failure: Exception = Interrupted()
    async with trio.open_nursery() as nursery:
        await nursery.start(cancel_at_signal, nursery.cancel_scope)
        try:
            return await function()
        except (Failure, GatewayError) as error:
            # Raised here, it would be in an exception group.
            failure = error
        finally:
            nursery.cancel_scope.cancel()
    raise failure


def failing_in_words(function: Callable[..., None]) -> Callable[..., None]:
    """Expected errors become a text (as JSON with `--json`) and an exit code, never a traceback."""

    def wrapper(*, config: Path | tuple[Path, ...] | None, as_json: bool, **arguments: Any) -> None:
        try:
            function(Invocation.of(config, as_json=as_json), **arguments)
        except Failure as failure:
            fail(str(failure), failure.code, as_json=as_json)
        except ConfigError as error:
            fail(str(error), ExitCode.WRONG, as_json=as_json)
        except GatewayError as error:
            fail(str(error), ExitCode.FAILED, as_json=as_json)

    update_wrapper(wrapper, function)
    return wrapper


def command(function: Callable[..., None]) -> click.Command:
    """A command of `pairgate`, with the options that all have."""
    return click.command()(add_config(add_json(failing_in_words(function))))


def command_for_several(function: Callable[..., None]) -> click.Command:
    """As `command`, of an order that one or several gateways get."""
    return click.command()(_add_configs(add_json(failing_in_words(function))))


def fail(text: str, code: int, *, as_json: bool) -> NoReturn:
    """End with that exit code, and with the text on standard error."""
    if as_json:
        _say(json.dumps({"error": text, "exit_code": int(code)}))
    else:
        _say(f"Error: {printable(text)}")
    sys.exit(code)


def _say(text: str) -> None:
    """
    Print the text to standard error. The exit code is kept even if nothing reads, or the disk is
    full.
    """
    try:
        fd = sys.stderr.fileno()
    except OSError:  # standard error isn't a file
        click.echo(text, err=True)
        return
    _, has_room, _ = select.select([], [fd], [], LAST_WORDS_SECONDS)
    if has_room:
        with suppress(OSError):  # text left in a buffer would fail the exit
            os.write(fd, f"{text}\n".encode("utf-8", "backslashreplace"))


def printable(text: str) -> str:
    """
    The text with line ends and tabs; every other character that could control a terminal is
    escaped.
    """
    return "".join(
        letter
        if letter.isprintable() or letter in "\n\t"
        else letter.encode("unicode_escape").decode()
        for letter in text
    )
