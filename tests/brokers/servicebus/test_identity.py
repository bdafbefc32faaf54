"""The identity of a namespace over REST, as far as the peer's answer has it."""

import pytest

from gateway.brokers.servicebus.peer import EntityTokens, RestPeer
from gateway.domain.errors import BrokerError, InvalidRequest, NotSupported, Unavailable
from gateway.wire.http.messages import Headers, Response
from tests.brokers.servicebus.served import real_date

PAIRGATE = ("X-Pairgate", "1")


async def asked(status: int, *headers: tuple[str, str]):
    async def answer(_request, _max_body=None):
        return Response(status=status, headers=Headers.of(headers))

    tokens = EntityTokens(
        origin="http://localhost", key_name="k", key="key", lifetime=60.0, clock=real_date
    )
    return await RestPeer(ask=answer, tokens=tokens).identity()


async def test_a_pairgate_says_who_it_is():
    told = await asked(200, PAIRGATE, ("X-Pairgate-Identity", "store:00ff"))

    assert str(told) == "store:00ff"


@pytest.mark.parametrize(
    ("status", "headers", "error"),
    [
        (404, (), NotSupported),  # Service Bus knows no such path
        (401, (), NotSupported),
        (503, (), Unavailable),  # perhaps something in between
        (200, (PAIRGATE,), InvalidRequest),
        (200, (PAIRGATE, ("X-Pairgate-Identity", "?")), InvalidRequest),
    ],
)
async def test_the_answer_of_another_service_says_nothing(status, headers, error):
    with pytest.raises(error):
        await asked(status, *headers)


async def test_a_pairgate_of_before_refuses_and_says_nothing():
    with pytest.raises(BrokerError) as caught:
        await asked(404, PAIRGATE, ("X-Pairgate-Error", "entity-not-found"))

    assert not caught.value.counts_as_outage
