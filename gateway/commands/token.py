"""`pairgate token`: a signed token for curl."""

from datetime import timedelta
from typing import Any

import click
from rich.text import Text

from gateway.app.failure import ExitCode, Failure
from gateway.app.operations import tokens
from gateway.app.operations.tokens import Grant
from gateway.app.runtime import Runtime
from gateway.commands.place import complete_entity
from gateway.commands.terminal import Duration, Invocation, add_port_offset, command
from gateway.domain.access import Right


@command
@add_port_offset
@click.argument("entity", required=False, shell_complete=complete_entity)
@click.option("--storage", is_flag=True, help="A SAS for Storage Queue, as parameters of a URL.")
@click.option(
    "--valid",
    type=Duration(above_zero=True),
    default="1h",
    show_default=True,
    help="Time to expiry.",
)
@click.option("--policy", metavar="NAME", help="The [[access]] that signs it.")
@click.option(
    "--right",
    type=click.Choice([right.value for right in Right], case_sensitive=False),
    default=Right.SEND.value,
    show_default=True,
    help="Chooses the [[access]] with the fewest rights that has this one.",
)
@click.option("--account", metavar="NAME", help="With --storage: the [[accounts]] that signs it.")
@click.option(
    "--permissions",
    metavar="LETTERS",
    help=f"With --storage: some of {tokens.OF_QUEUE}; without ENTITY, of {tokens.OF_ACCOUNT}.",
)
@click.option("--url", metavar="URL", help="The endpoint. Default: the first one that fits.")
def token(invocation: Invocation, storage: bool, **given: Any) -> None:
    """
    Print a shared access signature for ENTITY, or for all entities.

    It is the value of the header Authorization, or, with --storage, the parameters of a URL. It is
    signed here, with a key of the configuration: no gateway is asked, and none knows of it.
    """
    not_used = ("policy",) if storage else ("account", "permissions")
    for name in not_used:
        if given[name] is not None:
            where = "without" if storage else "with"
            raise Failure(f"--{name} is used {where} --storage", ExitCode.WRONG)
    config, now = invocation.read_with("access", "accounts"), Runtime.now()
    grant = Grant(
        entity=given["entity"],
        valid=timedelta(seconds=given["valid"]),
        url=given["url"],
        port_offset=given["port_offset"],
    )
    if storage:
        account, permissions = given["account"], given["permissions"]
        made = tokens.storage_token(config, now, grant, account=account, permissions=permissions)
    else:
        policy, right = given["policy"], Right(given["right"])
        made = tokens.service_bus_token(config, now, grant, policy=policy, right=right)
    value = {
        "token": made.token,
        "url": made.url,
        "signed_by": made.signed_by,
        "expires": made.expires.isoformat(),
    }
    invocation.print(value, Text(made.token))
