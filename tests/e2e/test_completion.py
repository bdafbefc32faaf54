"""The scripts of `pairgate completion`, and the answers that they get."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

from tests.command_line import pairgate
from tests.e2e.processes import environment

pytestmark = pytest.mark.slow

CONFIG: Final = '[namespaces.east]\nurl = "memory:"\nqueues = ["orders", "offers", "bills"]\n'
ASK: Final = """
COMPREPLY=() COMP_WORDS=(pairgate {words}) COMP_CWORD={last}
_pairgate_completion pairgate
echo "${{COMPREPLY[@]}}"
"""
OFFERED: Final = {
    ("st",): {"status", "store"},
    ("create", ""): {"queue", "topic", "subscription"},
    ("send", "o"): {"orders", "offers"},
    ("delete", "queue", "b"): {"bills"},
    ("list", "--namespace", ""): {"east"},
    ("completion", ""): {"bash", "zsh", "fish"},
}


def completed(folder: Path, *lines: Sequence[str]) -> list[set[str]]:
    """The words that one bash offers for the last word of each line, in that folder."""
    programs = folder / "bin"
    programs.mkdir(exist_ok=True)
    program = programs / "pairgate"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m gateway "$@"\n')
    program.chmod(0o700)
    asked = [
        ASK.format(words=" ".join(word or "''" for word in words), last=len(words))
        for words in lines
    ]
    result = subprocess.run(
        ["bash", "-c", "".join(['eval "$(pairgate completion bash)"', *asked])],
        cwd=folder,
        env={**environment(), "PATH": f"{programs}:/usr/bin:/bin"},
        check=True,
        capture_output=True,
        text=True,
    )
    return [set(line.split()) for line in result.stdout.splitlines()]


def test_bash_completes_commands_and_names(tmp_path: Path) -> None:
    (tmp_path / "pairgate.toml").write_text(CONFIG)

    assert completed(tmp_path, *OFFERED) == list(OFFERED.values())


def test_a_wrong_configuration_offers_nothing(tmp_path: Path) -> None:
    (tmp_path / "pairgate.toml").write_text("nonsense")

    assert completed(tmp_path, ("send", "o")) == [set()]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_a_script_that_asks_in_its_own_form(shell: str) -> None:
    result = pairgate("completion", shell)

    assert result.exit_code == 0
    assert f"_PAIRGATE_COMPLETE={shell}_complete" in result.stdout


def test_another_shell_is_a_wrong_usage() -> None:
    assert pairgate("completion", "tcsh").exit_code == 2
