import trio

from gateway.app.servers import LongPolls
from gateway.wire.http.messages import Request, Response


async def answered(polls: LongPolls, request: Request, answers: list[int]) -> None:
    answers.append((await polls.handle(request)).status)


async def test_a_client_that_waits_for_a_message_is_told_that_there_is_none(
    autojump_clock: trio.testing.MockClock,
) -> None:
    answers: list[int] = []

    async def wait(request: Request) -> Response:
        await trio.sleep(60)
        return Response(status=201)

    polls = LongPolls(handler=wait)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(
            answered, polls, Request(method="POST", target="/orders/messages/head"), answers
        )
        nursery.start_soon(
            answered, polls, Request(method="POST", target="/orders/messages"), answers
        )
        await trio.sleep(1)
        polls.cancel_all()

    assert answers == [204, 201]
