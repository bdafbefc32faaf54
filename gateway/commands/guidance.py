"""The list of commands by what one wants to do, an example of each, and names like a wrong one."""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Final

import click

GROUPS: Final[Mapping[str, Sequence[str]]] = {
    "Run": ("serve", "run", "syphon", "listen", "agent", "demo"),
    "Look": (
        *("status", "events", "list", "dead-letters", "shards", "explain", "reconcile"),
        *("outage-report", "bench"),
    ),
    "Steer": (
        *("failover", "failback", "probe", "pause", "resume", "rate", "drill", "redrive", "purge"),
        *("reload", "drain", "move", "fault"),
    ),
    "Messages and entities": ("send", "receive", "peek", "create", "delete", "trigger", "token"),
    "Configuration": ("config", "check", "provision", "keys", "certs", "store", "completion"),
}
FURTHER: Final = "Further"  # the heading of commands that no group has: those of plug-ins
EXAMPLES: Final[Mapping[str, str]] = {
    # By command and subcommand: the arguments after its name.
    "agent": "--config listeners.toml",
    "bench": "orders --for 10s --connections 4",
    "certs": "tls",
    "check": "--config pairgate.toml",
    "completion": "bash > ~/.pairgate-completion",
    "config": "--example rabbitmq-pair > pairgate.toml",
    "config new": "orders.toml",
    "config show": "--config pairgate.toml",
    "create": "queue orders",
    "create queue": "orders --sessions",
    "create subscription": "news everything",
    "create topic": "news",
    "dead-letters": "--peek 3",
    "delete": "queue orders",
    "delete queue": "orders",
    "delete subscription": "news everything",
    "delete topic": "news",
    "demo": "",
    "drain": "--wait",
    "drill": "--fault hang --for 30s --load drill",
    "events": "--follow",
    "explain": "3fa85f64-5717-4562-b3fc-2c963f66afa6",
    "failback": '"orders/*"',
    "failover": 'orders --until 2h --reason "maintenance of the primary"',
    "fault": "add busy --entity orders --for 30s",
    "fault add": "fail --entity orders --count 10",
    "fault clear": "",
    "fault list": "",
    "keys": "rotate application",
    "keys rotate": "application --finish",
    "list": "orders",
    "listen": "orders --to http://127.0.0.1:8080/orders",
    "move": "plan",
    "move pause": "orders",
    "move plan": 'orders "events/*"',
    "move report": "",
    "move resume": "orders",
    "move rollback": "orders",
    "move start": 'orders --reason "to Premium"',
    "move status": "",
    "outage-report": "",
    "pause": "--until 06:00",
    "peek": "orders --count 5",
    "probe": "orders",
    "provision": "--config pairgate.toml",
    "purge": "pairgate/x-servicebus-transfer/0 --dead-letters",
    "rate": "200",
    "receive": "orders",
    "reconcile": "--since 2h --seal report.json",
    "redrive": "--execute",
    "reload": "",
    "resume": "",
    "run": "--queue orders -- python3 app.py",
    "send": 'orders "hello"',
    "serve": "--queue orders",
    "shards": "",
    "status": "--watch",
    "store": "check embedded:var/east.db",
    "store backup": "east /backups/east",
    "store check": "embedded:var/east.db",
    "store compact": "embedded:var/east.db",
    "syphon": "--config pairgate.toml",
    "token": "orders --valid 15m",
    "trigger": "orders",
}


def add_examples(command: click.Command, name: str) -> None:
    """End the help of the command, and of its subcommands, with an example."""
    if name in EXAMPLES:
        command.epilog = f"\b\nExample:\n  {f'pairgate {name} {EXAMPLES[name]}'.rstrip()}"
    if isinstance(command, click.Group):
        for each, part in command.commands.items():
            add_examples(part, f"{name} {each}")


def write_commands(formatter: click.HelpFormatter, summaries: Mapping[str, str]) -> None:
    """Write the commands in their groups, each with its whole sentence."""
    listed = {name for names in GROUPS.values() for name in names}
    groups = {**GROUPS, FURTHER: sorted(summaries.keys() - listed)}
    for heading, names in groups.items():
        rows = [(name, summaries[name]) for name in names if name in summaries]
        if rows:
            with formatter.section(heading):
                formatter.write_dl(rows)


def hint(wrong: str, known: Sequence[str]) -> str:
    """The question after a wrong name; empty if no name is like it."""
    near = get_close_matches(wrong, known, n=3)
    return f" Did you mean {' or '.join(near)}?" if near else ""
