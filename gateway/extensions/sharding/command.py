"""`pairgate shards`: the shards of the running gateway."""

from collections.abc import Sequence

from gateway.app.operations.admin_choice import AdminChoice
from gateway.commands.admin import add_gateway, give
from gateway.commands.terminal import Invocation, command
from gateway.extensions.sharding.shards import SHARDS, ShardReport, ShardsAnswer, ShardState
from gateway.wire.pairgate.control_call import NoKeys


@command
@add_gateway
def shards(invocation: Invocation, admin: AdminChoice) -> None:
    """
    Show the shards of each sharded queue of the running gateway: their messages, and which of those
    that drain are empty, so that they may be removed.
    """
    give(invocation, admin, SHARDS, NoKeys(), _lines)


def _lines(_: str, answer: ShardsAnswer) -> Sequence[str]:
    return [
        f"{each.queue} {each.number}  {each.state.value}, in {each.namespace}: {_content(each)}"
        for each in answer.shards
    ]


def _content(shard: ShardReport) -> str:
    if shard.problem:
        return f"not known: {shard.problem}"
    messages = "an unknown number of" if shard.messages is None else str(shard.messages)
    states = ", ".join(shard.not_counted)
    if not shard.is_empty:
        return f"{messages} messages to receive"
    if shard.state is not ShardState.DRAINING:
        return "empty"
    return f"empty, except for what isn't counted: {states}" if states else "empty: remove it"
