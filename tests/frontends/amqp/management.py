"""Parts of the tests of management that other tests need, too."""

from gateway.wire.amqp import events as amqp
from gateway.wire.amqp.exchange import build_request, parse_reply
from gateway.wire.amqp.management.requests import answer_of, request_of


async def reply_to(sdk, operation, entity="orders", seconds=None):
    request = request_of(operation, request_id="7", reply_to="here", timeout=seconds)
    return await reply_at(sdk, f"{entity}/$management", request)


async def reply_at(sdk, address, request):
    replies = await sdk.attached(
        we_send=False, address=address, target=amqp.Terminus(address="here")
    )
    sdk.engine.grant(replies, 1)
    requests = await sdk.attached(we_send=True, address=address)
    await sdk.outcome(sdk.engine.send(requests, b"1", build_request(request)))
    reply = parse_reply((await sdk.delivery(replies)).payload)
    sdk.engine.detach(replies)
    sdk.engine.detach(requests)
    assert reply.id == "7"
    return reply


async def ask(sdk, operation, entity="orders", seconds=None):
    return answer_of(operation, await reply_to(sdk, operation, entity, seconds))
