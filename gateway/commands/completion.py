"""`pairgate completion`: the shell completes commands, options and names."""

from typing import Final

import click
from click.shell_completion import get_completion_class

from gateway.commands.terminal import Invocation, command

PROGRAM: Final = "pairgate"
VARIABLE: Final = "_PAIRGATE_COMPLETE"  # by which the script asks `pairgate`
SHELLS: Final = ("bash", "zsh", "fish")


@command
@click.argument("shell", type=click.Choice(SHELLS))
def completion(invocation: Invocation, shell: str) -> None:
    """
    Print a script that completes commands, options and names of entities in SHELL.

    bash: eval "$(pairgate completion bash)" in ~/.bashrc. zsh: the same in ~/.zshrc. fish:
    pairgate completion fish > ~/.config/fish/completions/pairgate.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None
    root = click.get_current_context().find_root().command
    script = kind(root, {}, PROGRAM, VARIABLE).source()
    if invocation.as_json:
        invocation.print({"shell": shell, "script": script})
    else:
        click.echo(script, nl=False)
