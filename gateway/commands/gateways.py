"""An order for several gateways: each answer is told, and one that doesn't come is unknown."""

import sys
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import attrs
import click
import trio
from rich.text import Text

from gateway.app.failure import ExitCode, Failure, Unanswered
from gateway.app.operations import asking
from gateway.app.operations.admin_choice import AdminChoice
from gateway.commands.admin import (
    add_admin_access,
    add_process,
    give,
    with_keys_when_used,
)
from gateway.commands.terminal import Invocation, printable, run
from gateway.config.options import Config
from gateway.domain.errors import Outcome
from gateway.wire.pairgate.admin_json import value_of
from gateway.wire.pairgate.control_call import ControlCall

Q = TypeVar("Q")
A = TypeVar("A")

ACCEPTED: Final = "accepted"
NOT_SENT: Final[str] = Outcome.NOT_SENT.value
UNKNOWN: Final[str] = Outcome.UNKNOWN.value
# The better first: of several results the exit code is that of the last in this order.
_WORSE: Final = (
    ExitCode.DONE,
    ExitCode.PARTLY,
    ExitCode.TEMPORARY,
    ExitCode.FAILED,
    ExitCode.WRONG,
)

_add_urls = click.option(
    "--url",
    "urls",
    metavar="URL",
    multiple=True,
    help="The admin endpoint: http(s)://HOST[:PORT] or unix:PATH. Default: the configuration's."
    " Repeat it to order several gateways.",
)


def add_gateways(function: Callable[..., None]) -> Callable[..., None]:
    """
    Add the options that select gateways; the function gets an `AdminChoice` as `admin`, and the
    values of `--url` as `urls`.
    """
    return _add_urls(add_admin_access(function))


def add_processes(function: Callable[..., None]) -> Callable[..., None]:
    """As `add_gateways`, with `--process`: any process that has an admin endpoint."""
    return add_process(add_gateways(function))


@attrs.frozen(kw_only=True)
class AskedProcess:
    """A process that gets the call."""

    name: str  # as the user gave it
    config: Config
    admin: AdminChoice

    async def give(self, call: ControlCall[Q, A], request: Q) -> tuple[str, A]:
        """As `asking.give`."""
        return await asking.give(self.config, self.admin, call, request)


@attrs.frozen(kw_only=True)
class _GatewayAnswer:
    """An answer with the endpoint's address, or a failure."""

    name: str
    answer: Any = None
    failure: Failure | None = None

    @property
    def code(self) -> ExitCode:
        return ExitCode.DONE if self.failure is None else self.failure.code

    @property
    def outcome(self) -> str:
        if self.failure is None:
            return ACCEPTED
        return UNKNOWN if isinstance(self.failure, Unanswered) else NOT_SENT

    @property
    def value(self) -> dict[str, Any]:
        found = {"gateway": self.name, "outcome": self.outcome}
        if self.failure is None:
            return {**found, **value_of(self.answer)}
        return {**found, "error": str(self.failure), "exit_code": int(self.code)}


def give_each(
    invocation: Invocation,
    choice: tuple[AdminChoice, Sequence[str]],
    call: ControlCall[Q, A],
    request: Q,
    lines: Callable[[str, A], Sequence[str]],
) -> None:
    """
    Give the order to each gateway at the same time; print each answer, and end with the exit code
    of the worst result. `choice` is what `add_gateways` gives.

    Raises:
        Failure: of the only gateway; or `--url` and `--config` are both given several times.
    """
    admin, urls = choice
    if not invocation.further and len(urls) < 2:
        admin = attrs.evolve(admin, url=urls[0]) if urls else admin
        give(invocation, admin, call, request, lines)
        return
    results = run(_give_to_all, asked_processes(invocation, admin, urls), call, request)
    code = max((each.code for each in results), key=_WORSE.index)
    if invocation.as_json:
        invocation.print({"gateways": [each.value for each in results], "exit_code": int(code)})
    else:
        found = [line for each in results for line in _lines(each, lines)]
        invocation.print({}, *(Text(printable(line)) for line in found))
    sys.exit(code)


def asked_processes(
    invocation: Invocation, admin: AdminChoice, urls: Sequence[str]
) -> list[AskedProcess]:
    """
    The processes. Each configuration is read, and found to be right, before any is called.

    Raises:
        Failure: `--url` and `--config` are both given several times.
    """
    if urls and invocation.further:
        raise Failure("several --config: no --url expected beside them", ExitCode.WRONG)
    found = []
    for url in urls or (None,):
        for file in (invocation.config, *invocation.further):
            config, choice = with_keys_when_used(attrs.evolve(invocation, config=file), admin)
            name = url or str(file)
            found.append(
                AskedProcess(name=name, config=config, admin=attrs.evolve(choice, url=url))
            )
    return found


async def _give_to_all(
    asked: Sequence[AskedProcess], call: ControlCall[Q, A], request: Q
) -> list[_GatewayAnswer]:
    results = dict[int, _GatewayAnswer]()

    async def give_to(index: int, one: AskedProcess) -> None:
        try:
            address, answer = await one.give(call, request)
        except Failure as failure:
            results[index] = _GatewayAnswer(name=one.name, failure=failure)
        else:
            results[index] = _GatewayAnswer(name=address, answer=answer)

    async with trio.open_nursery() as nursery:
        for index, one in enumerate(asked):
            nursery.start_soon(give_to, index, one)
    return [results[index] for index in range(len(asked))]


def _lines(result: _GatewayAnswer, lines: Callable[[str, A], Sequence[str]]) -> Sequence[str]:
    if result.failure is None:
        return lines(result.name, result.answer)
    what = "unknown" if result.outcome == UNKNOWN else "not in effect"
    return [f"gateway at {result.name}: {what}: {result.failure}"]
