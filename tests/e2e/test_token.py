"""`pairgate token`: the gateway accepts the tokens, as far as they go."""

import json
from pathlib import Path
from typing import Final

import pytest
import trio

from tests.command_line import pairgate
from tests.e2e.commands import run
from tests.e2e.processes import Gateways
from tests.harness.secret_files import write_secret

CONFIG: Final = """
[namespaces.here]
url = "embedded:here.db"
queues = ["orders", "bills"]
[[endpoints]]
protocol = "service-bus-http"
bind = "127.0.0.1:0"
[[endpoints]]
protocol = "storage-queue"
bind = "127.0.0.1:0"
"""
POLICIES: Final = """
[[access]]
name = "owner"
key = { file = "first" }
rights = ["Manage"]
[[access]]
name = "sender"
key = { file = "second" }
rights = ["Send"]
entities = ["orders"]
[[accounts]]
name = "contoso"
key = { file = "account" }
"""


async def curl(*arguments: str) -> int:
    """The status of the answer."""
    command = ["curl", "--silent", "--output", "/dev/null", "--write-out", "%{http_code}"]
    result = await trio.run_process([*command, *arguments], capture_stdout=True)
    return int(result.stdout)


@pytest.mark.slow
async def test_curl_sends_with_a_token_of_service_bus(gateways: Gateways) -> None:
    gateway = await gateways.start(CONFIG)
    code, output, errors = await run(gateway.folder, "token", "orders")
    told = json.loads((await run(gateway.folder, "token", "orders", "--json"))[1])
    short = (await run(gateway.folder, "token", "orders", "--valid", "1ms"))[1]

    async def send(token: str, queue: str) -> int:
        url = f"http://{gateway.address}/{queue}/messages"
        return await curl("--header", f"Authorization: {token.strip()}", "--data", "hello", url)

    assert (code, errors) == (0, "")
    assert await send(output, "orders") == 201
    assert await send(output, "bills") == 401
    assert await send(told["token"], "orders") == 201
    assert told["url"] == f"http://{gateway.address}/orders"
    assert await send(short, "orders") == 201  # within the skew of clocks


@pytest.mark.slow
async def test_curl_puts_with_a_sas_of_storage(gateways: Gateways) -> None:
    gateway = await gateways.start(CONFIG)
    base = f"http://127.0.0.1:{gateway.ports[1]}/devstoreaccount1"

    async def token(*arguments: str) -> str:
        code, output, errors = await run(gateway.folder, "token", "--storage", *arguments)
        assert (code, errors) == (0, "")
        return output.strip()

    async def put(queue: str, sas: str) -> int:
        body = "<QueueMessage><MessageText>hello</MessageText></QueueMessage>"
        return await curl("--data", body, f"{base}/{queue}/messages?{sas}")

    of_queue, to_read = await token("orders"), await token("orders", "--permissions", "r")
    of_account = await token()
    told = json.loads(await token("orders", "--json"))

    assert await put("orders", of_queue) == 201
    assert await put("bills", of_queue) == 403
    assert await put("orders", to_read) == 403
    assert await put("bills", of_account) == 201
    assert await curl(f"{base}?comp=list&{of_account}") == 200
    assert told["url"] == f"{base}/orders"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("first", "second"):
        (tmp_path / name).write_text(f"the {name} key of all")
        (tmp_path / name).chmod(0o600)
    write_secret(tmp_path / "account", "c2VjcmV0IG9mIG1hbnkgYnl0ZXM=")
    text = (CONFIG + POLICIES).replace(":0", ":5300", 1).replace(":0", ":10001")
    (tmp_path / "pairgate.toml").write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "signer"),
    [
        (["orders"], "sender"),
        (["bills"], "owner"),
        ([], "owner"),
        (["orders", "--right", "Listen"], "owner"),
        (["orders", "--policy", "owner"], "owner"),
        (["orders", "--storage"], "contoso"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else value,
)
def test_a_token_is_signed_by_the_policy_with_the_fewest_rights_that_suffice(
    arguments: list[str], signer: str, folder: Path
) -> None:
    result = pairgate("token", *arguments, "--json", "--config", folder / "pairgate.toml")

    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["signed_by"] == signer
    assert "the first key" not in result.output


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["bills", "--policy", "sender"], "doesn't have the right Send for bills"),
        (["orders", "--policy", "nobody"], "there are owner, sender"),
        (["no entity"], "segments of letters"),
        (["orders", "--permissions", "r"], "--permissions is used with --storage"),
        (["orders", "--storage", "--policy", "owner"], "--policy is used without --storage"),
        (["orders", "--storage", "--permissions", "x"], "some of the letters 'raup' expected"),
        (["orders", "--storage", "--account", "nobody"], "there are contoso"),
        (["orders", "--url", "here"], "http(s)://HOST[:PORT] expected"),
        (["orders", "--url", "http://[here"], "http(s)://HOST[:PORT] expected"),
        (["orders", "--url", "http://here:port"], "http(s)://HOST[:PORT] expected"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_token_that_would_not_be_accepted_is_not_made(
    arguments: list[str], text: str, folder: Path
) -> None:
    result = pairgate("token", *arguments, "--config", folder / "pairgate.toml")

    assert (result.exit_code, result.stdout) == (2, "")
    assert text in result.stderr
