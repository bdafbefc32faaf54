"""The way of a message through an outage, with each process that has a part in it."""

from tests.e2e.commands import pairgate
from tests.e2e.processes import Gateways, broker_config, pair_config
from tests.e2e.rest import send, take


async def bring_home(gateways: Gateways) -> None:
    """
    A gateway diverts a message while its primary is down; a syphon of its own moves it, and ends.
    """
    primary = await gateways.start(broker_config("orders"), name="primary")
    secondary = await gateways.start(broker_config(), name="secondary")
    config = pair_config(primary.address, secondary.address, enable_syphon=False)
    gateway = gateways.prepare(config)
    gateway.folder.mkdir()
    gateway.config_file.write_text(gateway.config)
    code, _, errors = await pairgate(gateway, "provision")
    assert code == 0, errors
    await gateway.start()
    await primary.kill()
    assert await send(gateway.address, "orders", b"one") == (201, "backlog")
    await primary.start()

    syphon = await gateways.start(config, command=["syphon"])

    assert await take(primary.address, "orders") == b"one"
    assert await syphon.stop() == 0
