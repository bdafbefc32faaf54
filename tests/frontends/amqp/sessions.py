"""Parts of the tests of sessions that other tests need, too."""

from gateway.domain.entity import EntityPath
from gateway.wire.amqp import events as amqp

SQ = EntityPath("sq")
FILTER = "com.microsoft:session-filter"


def source(wanted, entity="sq"):
    return amqp.Terminus(address=entity, filters={FILTER: wanted})


def asks(wanted, entity="sq", **fields):
    return {"we_send": False, "address": entity, "source": source(wanted, entity)} | fields


async def holds(sdk, wanted, **fields):
    """The link, and the properties of the answer."""
    link = sdk.attach(**asks(wanted, **fields))
    answer = await sdk.until(amqp.LinkAttached, lambda event: event.link == link)
    assert answer.source is not None
    return link, answer
