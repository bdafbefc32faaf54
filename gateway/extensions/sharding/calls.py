"""The control call that shows shards."""

from typing import Final

from gateway.extensions.sharding.shards import ShardsAnswer
from gateway.wire.pairgate.control_call import ControlCall, NoKeys

SHARDS: Final = ControlCall(
    name="shards",
    method="GET",
    summary="the shards of each sharded queue, their messages, and which of them are empty",
    request=NoKeys,
    answer=ShardsAnswer,
    refusals=(501,),
)
