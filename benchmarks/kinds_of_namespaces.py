"""Namespaces of each kind, each on a server of its own that runs as long as it is measured."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.fleet import open_fleet
from gateway.demo.machines import KEY, KEY_NAME, broker_config
from tests.harness.azurite import ACCOUNT, azurite
from tests.harness.azurite import KEY as ACCOUNT_KEY
from tests.harness.rabbitmq import INSTALLED, RABBITMQ_4, USER, Release, rabbitmq
from tests.harness.secret_files import write_secret


@asynccontextmanager
async def _embedded(folder: Path) -> AsyncIterator[str]:
    yield f'url = "embedded:{folder / "store.db"}"'


@asynccontextmanager
async def _service_bus(folder: Path, *, is_rest: bool) -> AsyncIterator[str]:
    secret = folder / "secret"
    write_secret(secret, KEY)
    async with open_fleet(folder) as fleet:
        config = broker_config()
        if not is_rest:
            config = config.replace('"service-bus-http"', '"service-bus"')
        port = (await fleet.start("store", config)).port
        url = (
            f"servicebus+http://{KEY_NAME}@127.0.0.1:{port}"
            if is_rest
            else f"servicebus:Endpoint=sb://127.0.0.1:{port}/;"
            f"SharedAccessKeyName={KEY_NAME};UseDevelopmentEmulator=true;"
        )
        yield f'url = "{url}"\nkey = {{ file = "{secret}" }}'


@asynccontextmanager
async def _rabbitmq(folder: Path, *, release: Release) -> AsyncIterator[str]:
    secret = folder / "secret"
    write_secret(secret, USER)
    async with rabbitmq(folder / "rabbitmq", release=release) as (_, port):
        url = f"rabbitmq://{USER}@127.0.0.1:{port}/"
        yield f'url = "{url}"\npassword = {{ file = "{secret}" }}'


@asynccontextmanager
async def _storage_queue(folder: Path) -> AsyncIterator[str]:
    secret = folder / "secret"
    write_secret(secret, ACCOUNT_KEY)
    async with azurite(folder / "azurite") as (_, port):
        place = f"QueueEndpoint=http://127.0.0.1:{port}/{ACCOUNT}"
        url = f"storage-queue:AccountName={ACCOUNT};{place}"
        yield f'url = "{url}"\nkey = {{ file = "{secret}" }}'


@asynccontextmanager
async def storage_queue_of_gateway(folder: Path) -> AsyncIterator[str]:
    """As a storage account, by another Pairgate: Azurite is slow with thousands of messages."""
    secret = folder / "secret"
    write_secret(secret, ACCOUNT_KEY)
    async with open_fleet(folder) as fleet:
        config = broker_config().replace('"service-bus-http"', '"storage-queue"')
        port = (await fleet.start("store", config)).port
        place = f"QueueEndpoint=http://127.0.0.1:{port}/{ACCOUNT}"
        url = f"storage-queue:AccountName={ACCOUNT};{place}"
        yield f'url = "{url}"\nkey = {{ file = "{secret}" }}'


NAMESPACES: Final[dict[str, Callable[[Path], AbstractAsyncContextManager[str]]]] = {
    "embedded": _embedded,
    "servicebus": partial(_service_bus, is_rest=False),
    "servicebus+http": partial(_service_bus, is_rest=True),
    "rabbitmq": partial(_rabbitmq, release=INSTALLED),
    "rabbitmq 4": partial(_rabbitmq, release=RABBITMQ_4),
    "storage-queue": _storage_queue,
}
"""By kind: what yields the lines of the table of such a namespace, which runs."""
