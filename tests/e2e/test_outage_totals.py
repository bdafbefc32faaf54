"""
The totals of an outage from several processes, held against the queues: two gateways and a syphon
of its own. A gateway tells its figures as soon as its entities are back.
"""

import json
import signal
from collections import Counter
from functools import partial
from typing import Any

import pytest
import trio

from gateway.domain import backlog
from gateway.domain.entity import EntityPath, QueueProperties
from tests.e2e.commands import ADMIN, pairgate, with_fixed_port
from tests.e2e.installation import client
from tests.e2e.processes import IMPATIENT, GatewayProcess, Gateways, broker_config, pair_config
from tests.e2e.rest import send
from tests.harness.patience import PATIENCE

pytestmark = pytest.mark.slow

# Messages in the outage, by gateway and entity.
SENT = {"north": {"orders": 7, "invoices": 2}, "south": {"orders": 4, "bills": 5}}
ENTITIES = ("orders", "invoices", "bills")


async def asked(process: GatewayProcess, *arguments: str) -> Any:
    _, output, _ = await pairgate(process, *arguments, "--json")
    return json.loads(output)


async def produce(process: GatewayProcess, messages: dict[str, int]) -> float:
    """Let the backlog accept so many messages by entity; return the seconds of the slowest."""
    slowest = 0.0
    for entity, count in messages.items():
        for _ in range(count):
            began = trio.current_time()
            assert await send(process.address, entity, b"x") == (201, "backlog")
            slowest = max(slowest, trio.current_time() - began)
    return slowest


async def until_known(process: GatewayProcess, others: int) -> None:
    """Return when the process has read the records of so many processes, its own among them."""
    with trio.fail_after(PATIENCE):
        while len((await asked(process, "status"))["pair"]["processes"]) < others:
            pass


async def test_the_totals_are_those_of_all_processes(gateways: Gateways) -> None:
    primary = await gateways.start(broker_config(*ENTITIES), name="primary")
    secondary = await gateways.start(broker_config(), name="secondary")
    async with client(secondary) as broker:
        for queue in (backlog.queue_name("east", 0), backlog.heartbeat_queue("east")):
            await broker.create_queue(queue, QueueProperties())
    places = primary.address, secondary.address
    pair = pair_config(*places, backlog_queues=1, enable_syphon=False, **IMPATIENT)
    pair_gateways = [await gateways.start(pair + ADMIN, name=name) for name in SENT]
    alone, _, _ = pair.partition("[[endpoints]]")
    await gateways.start(alone, name="syphon", command=("syphon",))
    for process in pair_gateways:
        await with_fixed_port(process)
        process.signal(signal.SIGHUP)  # after which it leaves a record at once
    for process in pair_gateways:
        await until_known(process, 3)

    north, south = pair_gateways
    primary.signal(signal.SIGSTOP)  # the sends of one gateway stall
    slowest = await produce(north, SENT["north"])
    await primary.kill()
    await produce(south, SENT["south"])
    await primary.start()
    for process in pair_gateways:
        await process.until(partial(process.count, "outage_over"), PATIENCE)
    reports = [(await asked(process, "outage-report"))["outages"] for process in pair_gateways]
    known = (await asked(south, "status"))["pair"]["processes"]
    async with client(primary) as broker:
        home = {each: (await broker.inspect(EntityPath(each))).active for each in ENTITIES}

    sent: Counter[str] = Counter()
    for messages in SENT.values():
        sent.update(messages)
    for process, (outage,) in zip(pair_gateways, reports, strict=True):
        assert (outage["processes"], outage["left_out"], outage["empty"]) == (3, [], True)
        assert (outage["diverted"], outage["moved"]) == (sent.total(), sent.total())
        assert 1 <= outage["possibly_twice"] <= len(SENT["north"])  # one attempt for each entity
        assert outage["possibly_twice_by_syphon"] <= sent.total()  # the syphon stalls, too
        assert 0.5 < outage["longest_stall"] <= slowest
        assert outage["dead_lettered"] == {}
        assert {each["entity"]: each["diverted"] for each in outage["entities"]} == sent
        (told,) = [line for line in process.log if line["event"] == "outage_over"]
        assert (told["diverted"], told["moved"]) == (sent.total(), sent.total())
    (first,), (second,) = reports
    for figure in (
        "possibly_twice",
        "possibly_twice_by_syphon",
        "longest_stall",
        "failed",
        "twice",
    ):
        assert first[figure] == pytest.approx(second[figure], abs=0.001)
    assert first["namespace_back"] == second["namespace_back"]  # the latest of all
    others = {each["process"]: each["possibly_twice"] for each in second["shares"][1:]}
    told = {each["name"]: each["possibly_twice"] for each in known}
    [name] = [each for each in told if each.endswith(f"(process {north.pid})")]
    assert others[name] == told[name] == first["possibly_twice"]
    stall = max(each["longest_stall"] or 0.0 for each in known)
    assert stall == pytest.approx(first["longest_stall"], abs=0.001)
    assert max(each["primary_back"] or "" for each in known) == first["namespace_back"]
    assert home == sent
