"""An outage with the rights that the pages name, and no others, for each process of the pair."""

import json

import pytest
import trio

from tests.e2e.commands import run
from tests.e2e.processes import KEY_VARIABLE, Gateways, broker_config, pair_config
from tests.e2e.rest import send
from tests.harness.patience import PATIENCE

pytestmark = [pytest.mark.slow, pytest.mark.live]

KEYS = {KEY_VARIABLE: "a key of more than sixteen bytes"}
BACKLOG = "east/x-servicebus-transfer/*"
# By the names of the policies: rights and entities.
ON_PRIMARY = {"sidecar": ("Send", "orders"), "syphon": ("Send", "orders")}
ON_SECONDARY = {"sidecar": ("Send", BACKLOG), "syphon": ("Listen", BACKLOG)}
MESSAGES = 5


def with_policies(config: str, policies: dict[str, tuple[str, str]]) -> str:
    everything = [
        *((name, right, entity) for name, (right, entity) in policies.items()),
        ("provision", "Manage", "*"),
    ]
    blocks = [
        f'[[access]]\nname = "{name}"\nkey = {{ env = "{KEY_VARIABLE}" }}\n'
        f"rights = {json.dumps([right])}\nentities = {json.dumps([entity])}\n"
        for name, right, entity in everything
    ]
    return "\n".join([config, *blocks])


async def test_send_and_listen_are_enough_where_provision_has_managed(gateways: Gateways) -> None:
    def config_of(policy: str) -> str:
        config = pair_config(
            primary.address, secondary.address, backlog_queues=1, enable_syphon=False
        )
        return config.replace("RootManageSharedAccessKey@", f"{policy}@")

    def moved() -> int:
        return sum(line["messages"] for line in syphon.log if line["event"] == "syphoned")

    for name in ("primary", "secondary", "sidecar", "syphon"):
        gateways.environments[name] = KEYS
    primary = await gateways.start(
        with_policies(broker_config("orders"), ON_PRIMARY), name="primary"
    )
    secondary = await gateways.start(with_policies(broker_config(), ON_SECONDARY), name="secondary")
    sidecar = gateways.prepare(config_of("sidecar"), name="sidecar")
    sidecar.folder.mkdir()
    (sidecar.folder / "pairgate.toml").write_text(config_of("provision"))
    code, _, errors = await run(sidecar.folder, "provision", **KEYS)
    assert code == 0, errors
    await sidecar.start()

    assert await send(sidecar.address, "orders", b"before") == (201, "primary")
    await primary.kill()
    for number in range(MESSAGES):
        assert await send(sidecar.address, "orders", b"%d" % number) == (201, "backlog")
    await primary.start()
    alone, _, _ = config_of("syphon").partition("[[endpoints]]")
    syphon = await gateways.start(alone, name="syphon", command=("syphon",))
    with trio.fail_after(PATIENCE):
        await syphon.until(lambda: moved() == MESSAGES)
        await syphon.seen("heartbeats_not_left")  # they take Send, and nothing else does
        await sidecar.seen("entity_state_changed", entity="orders", after="primary")

    assert await send(sidecar.address, "orders", b"after") == (201, "primary")
    for process in (sidecar, syphon):
        assert await process.stop() == 0
