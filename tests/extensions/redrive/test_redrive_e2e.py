"""`pairgate redrive` with real processes: dead letters of the backlog come home."""

import json
import os
import pty
import signal
import subprocess
import sys
from typing import Any

import attrs
import pytest
import trio

from tests.e2e.commands import ADMIN, pairgate, pairgate_provision, with_fixed_port
from tests.e2e.processes import (
    ENVELOPE_VARIABLE,
    KEY_VARIABLE,
    GatewayProcess,
    Gateways,
    broker_config,
    environment,
    pair_config,
)
from tests.e2e.rest import request, send, take
from tests.harness.patience import PATIENCE

pytestmark = pytest.mark.slow

SOME = 12  # messages
AT_ONCE = '\n[pairing.syphon]\ngone_grace = "0s"\nrescan = "1s"\n'
OTHER_SECRET = "PAIRGATE_TEST_OTHER_KEY"
KEYS = f'envelope_keys = [{{ id = "test", key = {{ env = "{ENVELOPE_VARIABLE}" }} }}]'
BOTH_KEYS = (
    f'envelope_keys = [{{ id = "test", key = {{ env = "{ENVELOPE_VARIABLE}" }} }},'
    f' {{ id = "test", key = {{ env = "{OTHER_SECRET}" }} }}]'
)
WRONG = "another secret under the same id"


async def redrive(process: GatewayProcess, *arguments: str) -> tuple[int, dict[str, Any]]:
    code, output, errors = await pairgate(process, "redrive", "--json", *arguments)
    assert output, errors
    return code, json.loads(output)


async def taken(address: str, count: int, queue: str = "orders") -> list[bytes]:
    with trio.fail_after(PATIENCE):
        return sorted([await take(address, queue) for _ in range(count)])


async def test_a_message_that_a_wrong_secret_dead_lettered_comes_home_with_the_secret_added(
    gateways: Gateways, monkeypatch: pytest.MonkeyPatch
) -> None:
    primary = await gateways.start(broker_config("orders"), name="primary")
    secondary = await gateways.start(broker_config(), name="secondary")
    pair = pair_config(primary.address, secondary.address, failover_interval="0s", backlog_queues=2)
    await pairgate_provision(gateways, pair)
    gateways.environments["stranger"] = {ENVELOPE_VARIABLE: WRONG}
    gateways.environments["mended"] = {OTHER_SECRET: WRONG}
    stranger = await gateways.start(
        pair.replace("enable_syphon = true", "enable_syphon = false"), name="stranger"
    )
    await primary.kill()
    for number in range(SOME):
        assert await send(stranger.address, "orders", b"%02d" % number) == (201, "backlog")
    await stranger.stop()
    await primary.start()
    gateway = await gateways.start(pair + AT_ONCE + ADMIN, name="gateway")
    await gateway.until(lambda: gateway.count("dead_lettered") == SOME)
    await with_fixed_port(gateway)

    status, told, _ = await pairgate(gateway, "status", "--json")
    unmended = await redrive(gateway)
    vain = await redrive(gateway, "--execute")
    await gateway.stop()
    mended = await gateways.start((pair + AT_ONCE + ADMIN).replace(KEYS, BOTH_KEYS), name="mended")
    await with_fixed_port(mended)
    monkeypatch.setattr(
        "tests.e2e.commands.environment", lambda: {**environment(), OTHER_SECRET: WRONG}
    )
    shown = await redrive(mended)
    narrow = await redrive(mended, "--with-reason", "EntityNotFound", "--execute")
    done = await redrive(mended, "--execute", "--with-reason", "EnvelopeMalformed")
    bodies = await taken(primary.address, SOME)
    after = await redrive(mended)

    assert status == 1
    assert f"{SOME} EnvelopeMalformed" in json.loads(told)["problems"][0]
    assert (unmended[0], unmended[1]["messages"], unmended[1]["moves"]) == (0, SOME, 0)
    assert "mac doesn't match" in unmended[1]["groups"][0]["problem"]
    assert (vain[0], vain[1]["moved"], vain[1]["left"]) == (1, 0, SOME)
    assert (shown[0], shown[1]["dry_run"], shown[1]["moves"]) == (0, True, SOME)
    assert (narrow[0], narrow[1]["moved"]) == (0, 0)
    assert (done[0], done[1]["moved"], done[1]["problems"]) == (0, SOME, [])
    assert bodies == [b"%02d" % number for number in range(SOME)]
    assert (after[0], after[1]["messages"]) == (0, 0)


def own_pair(primary: str, secondary: str) -> str:
    """A gateway before another process, with a backlog of its own."""
    config = pair_config(primary, "127.0.0.1:9", failover_interval="0s", backlog_queues=2)
    before, _, after = config.partition("[namespaces.secondary]")
    _, _, rest = after.partition("[pairing]")
    key = f'\nkey = {{ env = "{KEY_VARIABLE}" }}' if "://" in secondary else ""
    own = f'[namespaces.secondary]\nurl = "{secondary}"{key}\n\n[pairing]'
    return before + own + rest + AT_ONCE + ADMIN


@attrs.frozen
class Misspelt:
    """A gateway whose own backlog has dead letters for a queue that isn't there."""

    primary: GatewayProcess
    gateway: GatewayProcess

    async def mend(self) -> None:
        """Make the queue."""
        body = b'<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml"><Queue'
        body += b'Description xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/'
        body += b'connect"/></content></entry>'
        status, _, answer = await request(self.primary.address, "PUT", "/misspelt", body)
        assert status == 201, answer


async def misspelt(gateways: Gateways, secondary: str) -> Misspelt:
    primary = await gateways.start(broker_config("orders"), name="primary")
    await primary.kill()
    config = own_pair(primary.address, secondary)
    if "://" in secondary:
        await pairgate_provision(gateways, config)
    gateway = await gateways.start(config, name="gateway")
    for number in range(SOME):
        assert await send(gateway.address, "misspelt", b"%02d" % number) == (201, "backlog")
    await primary.start()
    await gateway.until(lambda: gateway.count("dead_lettered") == SOME)
    await with_fixed_port(gateway)
    return Misspelt(primary, gateway)


async def test_messages_for_a_queue_that_is_missing_are_a_problem_before_they_are_dead_letters(
    gateways: Gateways,
) -> None:
    primary = await gateways.start(broker_config("orders"), name="primary")
    await primary.kill()
    config = own_pair(primary.address, "embedded:west.db").replace('"0s"\nrescan', '"1h"\nrescan')
    gateway = await gateways.start(config, name="gateway")
    assert await send(gateway.address, "misspelt", b"one") == (201, "backlog")
    await with_fixed_port(gateway)
    await primary.start()
    with trio.fail_after(PATIENCE):
        told = ""
        while "for misspelt, which is missing" not in told:  # another process finds out
            code, told, _ = await pairgate(gateway, "status", "--json")
    await Misspelt(primary, gateway).mend()

    assert code == 1
    assert "create or enable it" in told
    assert await taken(primary.address, 1, "misspelt") == [b"one"]


@pytest.mark.parametrize("secondary", ["embedded:west.db", "memory:"])
async def test_a_store_of_the_gateways_own_is_redriven_by_the_gateway_that_has_it_open(
    gateways: Gateways, secondary: str
) -> None:
    found = await misspelt(gateways, secondary)
    people = await pairgate(found.gateway, "redrive")
    shown = await redrive(found.gateway)
    letters = await pairgate(found.gateway, "dead-letters", "--peek", "2")
    peeked = await pairgate(found.gateway, "dead-letters", "--json", "--peek", "2")
    await found.mend()
    done = await redrive(found.gateway, "--execute", "--rate", "5")
    bodies = await taken(found.primary.address, SOME, "misspelt")

    assert people[0] == 0
    assert "EntityNotFound" in people[1]
    assert f"{SOME} of {SOME} dead letters would be moved: add --execute" in people[1]
    assert letters[0] == 0
    assert f"{SOME} dead letters" in letters[1]
    assert "message id" in letters[1]
    samples = json.loads(peeked[1])["samples"]
    assert [(each["entity"], each["reason"], each["size"]) for each in samples] == [
        ("misspelt", "EntityNotFound", 2)
    ] * 2
    assert shown[1]["through"] == f"the gateway at 127.0.0.1:{found.gateway.ports[1]}"
    assert shown[1]["groups"][0]["oldest_age"] > 0
    assert (done[0], done[1]["moved"], done[1]["left"]) == (0, SOME, 0)
    assert bodies == [b"%02d" % number for number in range(SOME)]
    await found.gateway.seen("dead_letters_redriven")


async def test_dead_letters_of_the_spool_are_redriven_too(gateways: Gateways) -> None:
    primary = await gateways.start(broker_config("orders"), name="primary")
    secondary = await gateways.start(broker_config(), name="secondary")
    options = {"failover_interval": "0s", "backlog_queues": 1, "spool": "spool.db"}
    config = pair_config(primary.address, secondary.address, **options)
    await pairgate_provision(gateways, config)
    await primary.kill()
    await secondary.kill()
    gateway = await gateways.start(config + AT_ONCE + ADMIN, name="gateway")
    assert await send(gateway.address, "misspelt", b"one") == (201, "spool")
    await primary.start()
    await secondary.start()
    await gateway.until(lambda: gateway.count("dead_lettered") == 1)
    await with_fixed_port(gateway)
    found = Misspelt(primary, gateway)

    _, status, _ = await pairgate(gateway, "status", "--json")
    of_backlog = await redrive(gateway)
    shown = await redrive(gateway, "--spool")
    await found.mend()
    done = await redrive(gateway, "--spool", "--execute")
    bodies = await taken(primary.address, 1, "misspelt")

    assert "dead letters of the spool: 1 EntityNotFound" in status
    assert (of_backlog[1]["messages"], shown[1]["messages"]) == (0, 1)
    assert (done[0], done[1]["moved"], bodies) == (0, 1, [b"one"])


async def test_a_store_that_no_gateway_has_open_is_redriven_too(gateways: Gateways) -> None:
    found = await misspelt(gateways, "embedded:west.db")
    await found.gateway.stop()
    done = await redrive(found.gateway, "--execute")
    await found.mend()
    await found.gateway.start()
    bodies = await taken(found.primary.address, SOME, "misspelt")

    assert (done[0], done[1]["moved"]) == (0, SOME)
    assert done[1]["through"] == "namespace secondary"
    assert bodies == [b"%02d" % number for number in range(SOME)]


async def test_an_open_store_without_an_admin_endpoint_is_a_temporary_failure_in_words(
    gateways: Gateways,
) -> None:
    primary = await gateways.start(broker_config("orders"), name="primary")
    config = own_pair(primary.address, "embedded:west.db").replace(ADMIN, "")
    gateway = await gateways.start(config, name="gateway")

    code, _, errors = await pairgate(gateway, "redrive")

    assert code == 75
    assert "`admin` endpoint" in errors


async def test_a_secondary_that_is_down_is_a_temporary_failure(gateways: Gateways) -> None:
    primary = await gateways.start(broker_config("orders"), name="primary")
    secondary = await gateways.start(broker_config(), name="secondary")
    config = pair_config(primary.address, secondary.address)
    await pairgate_provision(gateways, config)
    gateway = gateways.prepare(config, name="gateway")
    gateway.folder.mkdir()
    await with_fixed_port(gateway)
    await secondary.kill()

    code, _, errors = await pairgate(gateway, "redrive", "--execute")

    assert code == 75
    assert "namespace secondary" in errors


@pytest.mark.parametrize("secondary", ["embedded:west.db", "another process"])
async def test_a_redrive_that_is_stopped_tells_how_far_it_is_and_goes_on_with_the_next(
    gateways: Gateways, secondary: str
) -> None:
    if secondary == "another process":
        other = await gateways.start(broker_config(), name="secondary")
        secondary = f"servicebus+http://RootManageSharedAccessKey@{other.address}"
    found = await misspelt(gateways, secondary)
    await found.mend()
    command = [sys.executable, "-m", "gateway", "redrive", "--execute", "--json", "--rate", "1"]
    process = await trio.lowlevel.open_process(
        [*command, "--config", str(found.gateway.config_file)],
        stdout=subprocess.PIPE,
        env=environment(),
    )
    assert process.stdout is not None
    early = await taken(found.primary.address, 2, "misspelt")  # of the first it has told
    process.send_signal(signal.SIGINT)
    told = b"".join([chunk async for chunk in process.stdout])
    stopped = json.loads(told)
    assert await process.wait() == 3
    moved = stopped["moved"]
    with trio.fail_after(PATIENCE):
        while (
            moved < SOME
        ):  # the stop may cut off an answer, whose messages stay locked for a while
            code, rest = await redrive(found.gateway, "--execute")
            assert code == 0, rest
            moved += rest["moved"]
    bodies = await taken(found.primary.address, SOME - len(early), "misspelt")

    assert 1 <= stopped["moved"] < SOME
    assert stopped["problems"] == ["it was stopped"]
    assert moved == SOME
    assert set(bodies) | set(early) == {b"%02d" % number for number in range(SOME)}


async def test_a_terminal_shows_how_far_it_is_and_nothing_else_does(gateways: Gateways) -> None:
    found = await misspelt(gateways, "embedded:west.db")
    await found.mend()
    screen = await trio.to_thread.run_sync(on_terminal, found.gateway, "--rate", "10")
    await taken(found.primary.address, SOME, "misspelt")
    _, _, errors = await pairgate(found.gateway, "redrive", "--execute")

    assert f"{SOME}/{SOME}" in screen
    assert errors == ""


def on_terminal(process: GatewayProcess, *arguments: str) -> str:
    """Return the output of `pairgate redrive --execute` on a terminal."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "gateway", "redrive", "--execute", "--config"]
    with subprocess.Popen(
        [*command, str(process.config_file), *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**environment(), "TERM": "xterm", "COLUMNS": "120"},
    ):
        os.close(theirs)
        written = b""
        while True:
            try:
                chunk = os.read(ours, 4096)
            except OSError:  # the other side is closed
                break
            if not chunk:
                break
            written += chunk
    os.close(ours)
    return written.decode(errors="replace")
