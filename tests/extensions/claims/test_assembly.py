"""`[claims]` in the app: the effect on clients, and the findings of `check`."""

import base64
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import pytest

from gateway.app.assembly.building import make_parts
from gateway.app.failure import Failure
from gateway.app.operations.checking import Grade, check
from gateway.app.operations.targets import open_target
from gateway.app.operations.ways_in import find_way_in
from gateway.app.runtime import Runtime
from gateway.config.errors import ConfigError
from gateway.config.file import Loaded, parse
from gateway.domain.access import Right
from gateway.domain.entity import EntityPath
from gateway.domain.message import Complete, Message
from gateway.net.tls import ClientTlsOptions
from tests.harness.azurite import ACCOUNT, KEY, azurite

ORDERS = EntityPath("orders")
LARGE = b"a large body " * 20_000
PAIR = """
[namespaces.east]
url = "embedded:east.db"
queues = ["orders"]
[namespaces.west]
url = "embedded:west.db"
[pairing]
primary = "east"
secondary = "west"
label = "east"
"""


def loaded(folder: Path, claims: str, above: str = PAIR) -> Loaded:
    environ = {"KEY": KEY, "WRONG": base64.b64encode(b"another key").decode()}
    text = f"{above}\n[claims]\n{claims}"
    return parse(text, source="x.toml", folder=folder, environ=environ)


async def findings(folder: Path, claims: str) -> dict[str, tuple[Grade, str]]:
    found = await check(loaded(folder, claims), Runtime())
    return {each.subject: (each.grade, each.text) for each in found}


async def test_a_pair_with_claims_takes_what_its_namespaces_would_refuse(tmp_path: Path) -> None:
    config = loaded(tmp_path, 'store = "folder:bodies"').config
    large = LARGE * 10  # above the limit of an embedded namespace

    async with AsyncExitStack() as stack:
        parts = await make_parts(stack, config, Runtime())
        await parts.broker.send(ORDERS, [Message(body=large)])
        async with parts.broker.open_receiver(ORDERS) as receiver:
            (delivery,) = await receiver.receive(1)
            await receiver.settle(delivery, Complete())

    assert delivery.message.body == large
    bodies = [file.name for file in (tmp_path / "bodies").glob("*/*")]
    assert len(bodies) == 2  # the body, and the note that it was completed


async def test_a_command_on_the_namespace_itself_sees_the_body(tmp_path: Path) -> None:
    config = loaded(tmp_path, 'store = "folder:bodies"').config
    async with AsyncExitStack() as stack:
        parts = await make_parts(stack, config, Runtime())
        await parts.broker.send(ORDERS, [Message(body=LARGE)])

    async with AsyncExitStack() as stack:
        way = partial(find_way_in, config, Right.LISTEN, tls=ClientTlsOptions())
        target = await open_target(stack, config, Runtime(), way=way)
        async with target.broker.open_receiver(ORDERS) as receiver:
            (delivery,) = await receiver.receive(1)

    assert delivery.message.body == LARGE


async def test_check_looks_whether_bodies_can_be_written_and_read(tmp_path: Path) -> None:
    claims = 'store = "folder:bodies"'
    assert (await findings(tmp_path, claims))["claims"][0] is Grade.GOOD
    assert not (tmp_path / "bodies").exists()

    async with AsyncExitStack() as stack:
        await make_parts(stack, loaded(tmp_path, claims).config, Runtime())
    grade, text = (await findings(tmp_path, claims))["claims"]
    assert (grade, text) == (Grade.GOOD, "bodies can be written, read and deleted")
    assert list((tmp_path / "bodies").glob("*/*")) == []

    (tmp_path / "other").mkdir()
    grade, text = (await findings(tmp_path, 'store = "folder:other"'))["claims"]
    assert grade is Grade.BAD
    assert "other" in text


async def test_check_and_serve_know_a_container_and_its_key(tmp_path: Path) -> None:
    async with azurite(tmp_path / "azurite", service="blob") as (_, port):
        store = f"azure-blob:BlobEndpoint=http://127.0.0.1:{port}/{ACCOUNT};AccountName={ACCOUNT}"
        good = f'store = "{store}"\nkey = {{ env = "KEY" }}'
        wrong = f'store = "{store}"\nkey = {{ env = "WRONG" }}'

        grade, text = (await findings(tmp_path, good))["claims"]
        assert grade is Grade.BAD
        assert "`pairgate serve` creates it" in text
        async with AsyncExitStack() as stack:
            await make_parts(stack, loaded(tmp_path, good).config, Runtime())
        assert (await findings(tmp_path, good))["claims"][0] is Grade.GOOD
        assert (await findings(tmp_path, wrong))["claims"][0] is Grade.BAD
        async with AsyncExitStack() as stack:
            with pytest.raises(Failure, match="403"):
                await make_parts(stack, loaded(tmp_path, wrong).config, Runtime())


async def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")

    config = loaded(tmp_path, 'store = "folder:file/bodies"').config
    async with AsyncExitStack() as stack:
        with pytest.raises(Failure, match="claims: claim store"):
            await make_parts(stack, config, Runtime())


@pytest.mark.parametrize(
    ("claims", "problem"),
    [
        ("", "claims.store: is missing"),
        ('store = "s3:bucket"', "claims.store: folder:PATH or azure-blob:CONNECTION_STRING"),
        ('store = "folder:"', "claims.store: a path expected"),
        (
            'store = "azure-blob:AccountName=a;AccountKey=secret"',
            "claims.store: must not contain a secret",
        ),
        ('store = "azure-blob:AccountName=a"', "claims.store: connection string: AccountKey"),
        (
            'store = "azure-blob:AccountName=a"\nkey = { env = "KEY" }\ncontainer = "A"',
            "claims.container 'A'",
        ),
        ('store = "folder:x"\nabove = "0B"', "claims.above: must be >= 1"),
        ('store = "folder:x"\nkeep_at_most = "1s"', "claims.keep_at_most: must be >= 3600"),
    ],
)
def test_mistakes_are_told_with_their_key(claims: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        loaded(Path("/nowhere"), claims)

    assert problem in str(caught.value)
    assert "=secret" not in str(caught.value)
