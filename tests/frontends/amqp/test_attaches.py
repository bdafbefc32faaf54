"""Links keep nothing of the attach beyond what they need."""

import gc

from gateway.wire.amqp.events import LinkAttached, LinkFlow, Terminus
from tests.frontends.amqp.sdk import HOST

MARK = "only of this test"
PROPERTIES = {MARK: [[]] * 1000}


async def test_no_link_keeps_its_attach(house):
    stranger = await house.connect().open()
    await stranger.attached(we_send=True, address="$cbs", properties=PROPERTIES)
    await stranger.attached(we_send=False, address="$cbs", properties=PROPERTIES)
    sdk = await house.client()
    await sdk.sender(properties=PROPERTIES)
    await sdk.receiver(properties=PROPERTIES)
    for we_send in (True, False):
        address = f"{HOST}orders/$management"
        await sdk.attached(we_send=we_send, address=address, properties=PROPERTIES)
    target = Terminus(coordinator=True)
    link = sdk.attach(we_send=True, address="", target=target, properties=PROPERTIES)
    await sdk.until(LinkFlow, lambda event: event.link == link)
    # The last one that the connections have read isn't collected yet.
    await stranger.attached(we_send=False, address="$cbs", name="last of the stranger")
    await sdk.receiver(name="last of the client")

    gc.collect()
    kept = [each for each in gc.get_objects() if isinstance(each, LinkAttached)]
    assert kept, "the collector knows no attach: the test can't fail"
    assert [each.name for each in kept if MARK in each.properties] == []
