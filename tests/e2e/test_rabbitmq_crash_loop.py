"""A message that kills each syphon that takes it, on a backlog that gives it back at once."""

import random
import signal

import attrs
import pytest
import trio

from gateway.capabilities import send_accepted_by
from gateway.domain.backlog import queue_name
from gateway.domain.entity import EntityPath
from gateway.domain.message import AcceptedBy, Message
from tests.e2e.installation import client
from tests.e2e.processes import KEY_VARIABLE, GatewayProcess, Gateways, broker_config, pair_config
from tests.e2e.rabbitmq_nodes import VHOST, ExampleNode, ExampleNodes
from tests.e2e.rabbitmq_pair import provision
from tests.harness.chaos_proxy import ChaosProxy, Link, Pass, Refuse
from tests.harness.patience import PATIENCE

pytestmark = [pytest.mark.live, pytest.mark.slow]

LABEL = "contoso-north"  # the user of the example's rights
ENTITIES = (EntityPath("orders"), EntityPath("bills"))
POISON = b"this kills a syphon"
OTHERS = [str(number) for number in range(24)]
LIVES = 40  # a handful is usual
SYPHON = """
[pairing.syphon]
batch = 10
attempt_timeout = "2s"
"""


@attrs.frozen
class Deadly(Pass):
    """Kills the syphon that sends the poison message, before the message arrives."""

    syphon: GatewayProcess

    async def up(self, link: Link, data: bytes) -> None:
        if POISON in data:
            await self.syphon.kill()
            link.reset()
            return
        await link.send_up(data)


async def arrived(primary: GatewayProcess) -> set[str]:
    async with client(primary) as broker:
        found = [each for entity in ENTITIES for each in await broker.peek(entity, limit=100)]
    return {str(delivery.message.message_id) for delivery in found}


async def waiting(south: ExampleNode) -> None:
    """Return when messages wait on the backlog: the node has noticed that the syphon is gone."""
    async with south.client() as backlog:
        with trio.fail_after(PATIENCE):
            while True:  # polled: the node decides
                if (await backlog.inspect(queue_name(LABEL, 0))).active:
                    return
                await trio.sleep(0.1)


async def test_the_others_move_and_the_deadly_one_stays_where_it_is(
    rabbits: ExampleNodes, gateways: Gateways
) -> None:
    south = rabbits.south
    await south.prepare("rabbitmq-backlog-definitions.json")
    primary = await gateways.start(broker_config(*map(str, ENTITIES)), name="primary")
    proxy = ChaosProxy("127.0.0.1", primary.port, rng=random.Random(1))
    await gateways.nursery.start(proxy.serve)
    options = {"label": LABEL, "backlog_queues": 1, "failover_interval": "0s"}
    config = pair_config(f"127.0.0.1:{proxy.port}", "x", enable_syphon=False, **options)
    config = config.replace(
        f'"servicebus+http://RootManageSharedAccessKey@x"\nkey = {{ env = "{KEY_VARIABLE}" }}',
        f'"rabbitmq://gateway@127.0.0.1:{south.node.port}/{VHOST}"\n'
        f'password = {{ env = "{KEY_VARIABLE}" }}',
    )
    await provision(gateways, config)
    gateway = await gateways.start(config, name="gateway")
    proxy.fault = Refuse()
    proxy.reset_all()
    async with client(gateway) as producer:
        poison = Message(message_id="poison", body=POISON)
        accepted_by = [await send_accepted_by(producer, ENTITIES[0], [poison])]
        for number, name in enumerate(OTHERS):
            accepted_by.append(
                await send_accepted_by(producer, ENTITIES[number % 2], [Message(message_id=name)])
            )
    await gateway.stop()

    alone, _, _ = config.partition("[[endpoints]]")
    syphon = gateways.prepare(alone + SYPHON, name="syphon", command=("syphon",))
    proxy.fault = Deadly(syphon)
    ends: list[int] = []
    while len(ends) < LIVES and await arrived(primary) != set(OTHERS):
        await syphon.start(wait=False)
        ends.append(await syphon.wait())
    home = await arrived(primary)
    # With messages that were moved, and not completed when the syphon died.
    await waiting(south)
    proxy.fault = Pass()
    await syphon.start()
    with trio.fail_after(PATIENCE):
        while True:  # polled: another process decides
            if "poison" in await arrived(primary):
                break
            await trio.sleep(0.1)
    code = await syphon.stop()

    assert set(accepted_by) == {AcceptedBy.BACKLOG}
    assert home == set(OTHERS), f"after {len(ends)} lives"
    assert set(ends) == {-signal.SIGKILL}
    assert code == 0
    assert await arrived(primary) == {"poison", *OTHERS}
