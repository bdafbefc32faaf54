"""`pairgate keys`: changes keys while clients, gateways and syphons go on."""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import attrs
import click
import trio
from rich.text import Text

from gateway.app.failure import ExitCode, Failure
from gateway.app.operations import key_rotation
from gateway.app.operations.admin_choice import AdminChoice
from gateway.app.operations.asking import ask_status, give
from gateway.app.operations.key_rotation import ENVELOPE, KeyRotation, PairKeys
from gateway.commands.admin import add_gateway
from gateway.commands.terminal import (
    Invocation,
    Number,
    add_config,
    add_json,
    failing_in_words,
    printable,
    run,
)
from gateway.config.endpoints import ADMIN, PROCESSES, SERVE
from gateway.config.file import Loaded
from gateway.config.options import Config
from gateway.config.source import FILE_NAME
from gateway.domain.health.process_records import PairProcess
from gateway.domain.operators.process import ProcessAction, ProcessAnswer, ProcessOrder
from gateway.wire.pairgate.control_calls import RELOAD

ASKED_EVERY: Final = 2.0  # seconds: a gateway reads the records no sooner
OTHERS: Final = tuple(each for each in PROCESSES if each != SERVE)


@click.group()
def keys() -> None:
    """Change the keys of clients and of the envelope."""


@keys.command()
@add_config
@add_json
@failing_in_words
@add_gateway
@click.argument("name", metavar="NAME")
@click.option("--use", is_flag=True, help="Of the envelope: let the new key sign.")
@click.option("--finish", is_flag=True, help="End the old key.")
@click.option(
    "--wait",
    type=Number(0.0, 600.0),
    default=15.0,
    show_default=True,
    help="Of the envelope: seconds for the pair's processes to tell that they have the keys.",
)
@click.option(
    "--force",
    is_flag=True,
    help="Of the envelope: though messages may wait under the old key, or a process lacks the new.",
)
def rotate(invocation: Invocation, admin: AdminChoice, name: str, **given: Any) -> None:
    """
    Write a new key for NAME; the old one stays valid until --finish.

    NAME is that of an [[access]] or [[accounts]], or `envelope`. The key must be in a file. The
    processes that run here and have an endpoint `admin` reload: gateway, syphon, listener, agent.
    Each step can be repeated. The pair's other processes read their own files again, too, by the
    records on the secondary, and tell there which keys they have.

    Exit code 3: the key is written, and not every process has told that it has the keys. 75:
    nothing is changed, as a process of the pair lacks the new key, or messages may wait under the
    old one.
    """
    use, finish = given["use"], given["finish"]
    _check_options(name, use=use, finish=finish, force=given["force"])
    loaded = invocation.read()
    file = invocation.config or Path.cwd() / FILE_NAME
    if not file.exists():
        raise Failure(f"{loaded.source} has no keys: name a file with --config", ExitCode.WRONG)
    if name == ENVELOPE:
        if not given["force"]:
            _refuse_too_early(loaded, admin, given["wait"], use=use, finish=finish)
        made = key_rotation.rotate_envelope(loaded, file, os.environ, use=use, finish=finish)
    else:
        made = key_rotation.rotate(loaded, file, name, os.environ, finish=finish)
    gateway = _reload(loaded, admin)
    others = {} if admin.url else {kind: _reload_other(loaded, admin, kind) for kind in OTHERS}
    reached = {kind: one for kind, one in others.items() if one}
    pair = PairKeys()
    if name == ENVELOPE:
        reloads = [gateway, *reached.values()]
        fresh = invocation.read()
        pair = run(_ask_until, fresh, admin, _has_read(fresh, reloads), given["wait"])
    _print(invocation, made, gateway, reached, pair)
    refused = [f"{kind}: {one.problem}" for kind, one in others.items() if one and one.refused]
    missing = [*refused, *pair.doubts]
    if missing:
        text = f"the key is written, and not each process is known to have it: {'; '.join(missing)}"
        raise Failure(text, ExitCode.PARTLY)


def _check_options(name: str, *, use: bool, finish: bool, force: bool) -> None:
    if use and (finish or name != ENVELOPE):
        raise Failure(f"--use: is for {ENVELOPE}, and without --finish", ExitCode.WRONG)
    if force and not ((use or finish) and name == ENVELOPE):
        raise Failure(f"--force: is for {ENVELOPE} with --use or --finish", ExitCode.WRONG)


def _refuse_with_a_backlog(loaded: Loaded, admin: AdminChoice) -> None:
    """
    Raises:
        Failure: messages may wait on the backlog that only the old key opens.
    """
    pairing = loaded.config.pairing
    if pairing is None or len(pairing.envelope_keys) < 2:
        return  # nothing to finish
    status = None
    with suppress(Failure):
        _, status = run(ask_status, loaded.config, admin)
    if doubt := key_rotation.backlog_doubt(status):
        text = f"pairing.envelope_keys: {doubt}, which may be under the old key"
        raise Failure(f"{text}; --force removes it all the same", ExitCode.TEMPORARY)


def _refuse_too_early(
    loaded: Loaded, admin: AdminChoice, seconds: float, *, use: bool, finish: bool
) -> None:
    """
    Raises:
        Failure: a process of the pair that runs tells for `seconds` that it isn't ready for the
            step, or messages may wait on the backlog that only the old key opens.
    """
    if finish:
        _refuse_with_a_backlog(loaded, admin)
    confirms = key_rotation.lets_go_on(_key_ids(loaded), use=use, finish=finish)
    if confirms is None:
        return
    if doubts := run(_ask_until, loaded, admin, confirms, seconds).doubts:
        verb = "sign with" if finish else "have"
        text = f"not each process of the pair is known to {verb} the new key: {'; '.join(doubts)}"
        raise Failure(
            f"pairing.envelope_keys: {text}; reload it there. --force goes on all the same",
            ExitCode.TEMPORARY,
        )


def _key_ids(loaded: Loaded) -> list[str]:
    pairing = loaded.config.pairing
    return [] if pairing is None else [each.id for each in pairing.envelope_keys]


@attrs.frozen(kw_only=True)
class _Reload:
    """The result of a reload: an answer, or a problem."""

    address: str | None = None
    answer: ProcessAnswer | None = None
    problem: str = ""
    refused: bool = False  # the process runs, and didn't reload


def _reload(loaded: Loaded, admin: AdminChoice) -> _Reload:
    """
    Let the gateway that runs reload.

    Raises:
        Failure: it refused.
    """
    order = ProcessOrder(
        action=ProcessAction.RELOAD, reason="pairgate keys rotate", everywhere=True
    )
    refused: Failure | None = None
    # The gateway may know the old key only, after a step that was interrupted before its reload.
    for config in (loaded.config, _with_old_keys_first(loaded.config)):
        try:
            address, answer = run(give, config, admin, RELOAD, order)
        except Failure as failure:
            if failure.code is not ExitCode.FAILED:  # none runs, or it has no admin endpoint
                return _Reload(problem=str(failure))
            refused = failure
        else:
            return _Reload(address=address, answer=answer)
    text = f"the key is written, and the gateway didn't reload: {refused}"
    raise Failure(text, ExitCode.PARTLY)


def _reload_other(loaded: Loaded, admin: AdminChoice, kind: str) -> _Reload | None:
    """Let a process of that kind reload; None: the configuration has no endpoint of it."""
    if not any(each.protocol == ADMIN for each in loaded.config.endpoints_of(kind).values()):
        return None
    try:
        return _reload(loaded, attrs.evolve(admin, process=kind))
    except Failure as failure:
        return _Reload(problem=str(failure), refused=True)


def _has_read(loaded: Loaded, reloads: Sequence[_Reload]) -> Callable[[PairProcess], bool]:
    """True of a process with the keys of the file, and of one that has answered it reloaded."""
    expected = tuple(_key_ids(loaded))
    places = {each.answer.after.place for each in reloads if each.answer is not None}
    return lambda each: each.name in places or each.keys == expected


async def _ask_until(
    loaded: Loaded, admin: AdminChoice, confirms: Callable[[PairProcess], bool], seconds: float
) -> PairKeys:
    """
    The keys that the pair's processes have by their records, as soon as each is known to have those
    that it needs, or after `seconds`.
    """
    until = trio.current_time() + seconds
    while True:
        status = None
        with suppress(Failure):
            _, status = await ask_status(loaded.config, admin)
        pair = key_rotation.keys_of_pair(status, confirms)
        if not pair.doubts or trio.current_time() >= until:
            return pair
        await trio.sleep(ASKED_EVERY)


def _with_old_keys_first(config: Config) -> Config:
    turned = (attrs.evolve(each, keys=each.keys[::-1]) for each in config.access)
    return attrs.evolve(config, access=tuple(turned))


def _print(
    invocation: Invocation,
    made: KeyRotation,
    reload: _Reload,
    others: Mapping[str, _Reload],
    pair: PairKeys,
) -> None:
    needs_restart = () if reload.answer is None else reload.answer.needs_restart
    value = {
        "name": made.name,
        "stage": made.stage.value,
        "changed": made.changed,
        "files": list(made.files),
        "next": made.next_step,
        "reloaded": reload.address,
        "problem": reload.problem,
        "needs_restart": list(needs_restart),
        "others": {kind: each.address for kind, each in others.items()},
        "not_reloaded": [each.process for each in pair.lacking],
        "processes": [attrs.asdict(each) for each in pair.read],
        "processes_unknown": pair.unknown,
    }
    done = "done" if made.changed else "nothing to do"
    lines = [f"{made.name}: {made.stage.value}: {done}"]
    lines += [f"  valid: {file}" for file in made.files]
    lines.append(f"  reloaded: {reload.address or f'no gateway here: {reload.problem}'}")
    for kind, each in others.items():
        lines.append(f"  {kind}: {f'reloaded: {each.address}' if each.address else each.problem}")
    lines += [
        f"  not reloaded: {each.process}: {each.text}: give it the keys, and reload it there"
        for each in pair.lacking
    ]
    if pair.unknown:
        lines.append(f"  other processes aren't known: {pair.unknown}")
    if needs_restart:
        lines.append(f"  need a restart: {', '.join(needs_restart)}")
    if made.next_step:
        lines.append(f"  next: {made.next_step}")
    invocation.print(value, *(Text(printable(line)) for line in lines))
