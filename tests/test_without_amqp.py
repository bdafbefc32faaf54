"""Where the engine of AMQP isn't installed, the rest works; who asks for AMQP is told why not."""

import ast
import json
import subprocess
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import pytest
import trio

from gateway.app.parts import make_parts
from gateway.app.runtime import Runtime
from gateway.config.file import parse

ROOT: Final = Path(__file__).parents[1]
# As if it had not been installed: the finder of installed modules doesn't find it.
HIDING: Final = """
import sys
from importlib.machinery import PathFinder

class Hiding:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in {"cproton_ffi", "cproton", "proton"}:
            return None
        return PathFinder.find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Hiding
sys.path.insert(0, sys.argv.pop(1))
"""
HIDDEN: Final = f"{HIDING}from gateway.cli import main\nmain()"
SIMULATED: Final = f"{HIDING}from tests.simulation.__main__ import main\nsys.exit(main())"
CONFIG: Final = """
[namespaces.east]
url = "embedded:east.db"
queues = ["orders"]
"""
MISSING: Final = "AMQP needs python-qpid-proton"


def pairgate(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", HIDDEN, str(ROOT), *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def configured(folder: Path, *protocols: str) -> tuple[str, str]:
    endpoints = [f'[[endpoints]]\nprotocol = "{each}"\nbind = "127.0.0.1:0"' for each in protocols]
    (folder / "pairgate.toml").write_text("\n".join([CONFIG, *endpoints]))
    return "--config", "pairgate.toml"


async def make_store(folder: Path) -> None:
    """As a first `pairgate serve` does."""
    text = (folder / "pairgate.toml").read_text()
    config = parse(text, source="pairgate.toml", folder=folder, environ={}).config
    async with AsyncExitStack() as stack:
        await make_parts(stack, config, Runtime())


@pytest.mark.slow
def test_who_asks_for_amqp_is_told_what_to_install(tmp_path: Path) -> None:
    config = configured(tmp_path, "service-bus-http", "service-bus", "amqp")

    checked = pairgate(tmp_path, "check", *config)
    served = pairgate(tmp_path, "serve", *config)

    assert checked.returncode == 1
    assert "endpoints[0]: protocol" not in checked.stdout
    assert f"endpoints[1]: protocol 'service-bus': {MISSING}" in checked.stdout
    assert f"endpoints[2]: protocol 'amqp': {MISSING}" in checked.stdout
    assert served.returncode == 2
    assert f"protocol 'service-bus': {MISSING}" in served.stderr


@pytest.mark.slow
def test_who_does_not_ask_for_amqp_has_all_the_rest(tmp_path: Path) -> None:
    config = configured(tmp_path, "service-bus-http")
    trio.run(make_store, tmp_path)

    sent = pairgate(tmp_path, "send", "orders", "hello", *config)
    taken = pairgate(tmp_path, "receive", "orders", *config)

    assert (sent.returncode, taken.returncode) == (0, 0), sent.stderr + taken.stderr
    assert "hello" in taken.stdout


@pytest.mark.slow
def test_who_wrote_no_configuration_is_warned_and_has_the_rest(tmp_path: Path) -> None:
    checked = pairgate(tmp_path, "check")

    assert checked.returncode == 0
    assert MISSING in checked.stdout


@pytest.mark.slow
def test_the_simulation_does_without(tmp_path: Path) -> None:
    simulated = subprocess.run(
        [sys.executable, "-c", SIMULATED, str(ROOT), "--hours", "1", "--json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )

    figures = json.loads(simulated.stdout)
    assert figures["violations"] == 0
    assert "acked over AMQP" not in figures["seen"]
    assert figures["seen"]["acked over Storage Queue"] > 0


def imported(source: str) -> set[str]:
    nodes = list(ast.walk(ast.parse(source)))
    modules = {each.module or "" for each in nodes if isinstance(each, ast.ImportFrom)}
    plain = {name.name for each in nodes if isinstance(each, ast.Import) for name in each.names}
    return {name.partition(".")[0] for name in modules | plain}


def test_no_module_imports_proton() -> None:
    importing = {
        file.relative_to(ROOT).as_posix()
        for file in (ROOT / "gateway").rglob("*.py")
        if imported(file.read_text()) & {"cproton_ffi", "cproton", "proton"}
    }

    assert importing == set()
