"""The contract of every store of bodies, on a folder and on a real Blob service."""

import os
import random
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from pathlib import Path

import jwt
import pytest
import trio

from gateway.app.runtime import Silence
from gateway.brokers.entra.tokens import AccessToken, AccessTokens
from gateway.brokers.storage_queue.blob_client import BlobClient
from gateway.domain.clocks.clock_note import Boot
from gateway.domain.errors import InvalidRequest, NotAuthorized, StorageFull, Unavailable
from gateway.extensions.claims.azure_blob_store import AzureBlobStore
from gateway.extensions.claims.claim import ClaimCorrupt, ClaimMissing
from gateway.extensions.claims.folder import FolderStore
from gateway.extensions.claims.store import ClaimStore
from gateway.net.certs import write_certificates
from gateway.wire.azure_blob import parse_blob_account
from tests.extensions.claims.stores import account_at, now
from tests.harness.azurite import ACCOUNT, azurite
from tests.harness.links import give_link, needs_root
from tests.harness.patience import PATIENCE

NAME = f"{'ab' * 16}.1790000000"
OTHER = f"{'ab' * 15}00.0"
ELSEWHERE = f"{'cd' * 16}.0"

Open = Callable[[Path], AbstractAsyncContextManager[ClaimStore]]


@asynccontextmanager
async def folder(path: Path) -> AsyncIterator[ClaimStore]:
    store = FolderStore(path / "store")
    await store.prepare()
    yield store


@asynccontextmanager
async def blob(path: Path, **settings: int) -> AsyncIterator[ClaimStore]:
    async with (
        azurite(path / "azurite", service="blob") as (_, port),
        AzureBlobStore(
            BlobClient(account_at(port), "bodies", now, 1024 * 1024), **settings
        ) as store,
    ):
        await store.prepare()
        await store.prepare()  # a second removal, which changes nothing
        yield store


@asynccontextmanager
async def blob_with_credential(path: Path) -> AsyncIterator[ClaimStore]:
    """Azurite takes a token of anybody, if its claims are right."""
    write_certificates(path / "tls", now=now())
    ends = now() + timedelta(hours=1)
    claims = {"aud": "https://storage.azure.com", "iss": "https://sts.windows.net/tenant/"}
    dates = {"iat": now(), "nbf": now(), "exp": ends}

    async def request() -> AccessToken:
        await trio.lowlevel.checkpoint()
        return AccessToken(text=jwt.encode({**claims, **dates}, "k" * 32), expires=ends)

    access = AccessTokens(
        request=request,
        namespace="claims",
        clock=now,
        rng=random.Random(0),
        observer=Silence(),
        patience=5.0,
    )
    certificate, ca = path / "tls" / "server.pem", path / "tls" / "ca.pem"
    async with azurite(path / "azurite", service="blob", certificate=certificate) as (_, port):
        text = f"BlobEndpoint=https://localhost:{port}/{ACCOUNT};AccountName={ACCOUNT}"
        account = parse_blob_account(text, needs_key=False)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("SSL_CERT_FILE", str(ca))  # the system's authorities
            store = AzureBlobStore(BlobClient(account, "bodies", now, 1024 * 1024, access=access))
        async with store:
            await store.prepare()
            yield store


@pytest.mark.parametrize(
    "open_store",
    [folder, blob, blob_with_credential],
    ids=["folder", "azure-blob", "azure-blob with a credential"],
)
async def test_a_store_keeps_lists_and_removes(open_store: Open, tmp_path: Path) -> None:
    """A single test for everything, since the service takes seconds to start."""
    large = os.urandom(500_000)
    with trio.fail_after(PATIENCE):
        async with open_store(tmp_path) as store:
            with pytest.raises(ClaimMissing):
                await store.get(NAME, 10)
            await store.remove(NAME)

            await store.put(NAME, b"first")
            await store.put(NAME, large)
            await store.put(f"{NAME}.done", b"")
            await store.put(OTHER, b"x")
            await store.put(ELSEWHERE, b"y")

            assert await store.get(NAME, len(large)) == large
            assert await store.get(f"{NAME}.done", 0) == b""
            with pytest.raises(ClaimCorrupt):
                await store.get(NAME, len(large) - 1)
            entries = await store.list("ab")
            assert {entry.name for entry in entries} == {NAME, f"{NAME}.done", OTHER}
            for entry in entries:
                assert abs(entry.written - now()) < timedelta(minutes=5)
            assert await store.list("00") in ([], ())
            assert abs(await store.date() - now()) < timedelta(minutes=5)

            await store.remove(NAME)
            with pytest.raises(ClaimMissing):
                await store.get(NAME, len(large))
            assert {entry.name for entry in await store.list("ab")} == {f"{NAME}.done", OTHER}


# --- Azure


async def test_a_list_goes_on_page_after_page(tmp_path: Path) -> None:
    names = {f"{number:032x}.0" for number in range(5)}
    with trio.fail_after(PATIENCE):
        async with blob(tmp_path, page=2) as store:
            for name in names:
                await store.put(name, b"")

            assert {entry.name for entry in await store.list("00")} == names


async def test_without_the_service_or_the_container_the_store_is_out(tmp_path: Path) -> None:
    """A store that is out makes no message look as if it had lost its body."""
    with trio.fail_after(PATIENCE):
        async with azurite(tmp_path / "azurite", service="blob") as (_, port):
            async with AzureBlobStore(BlobClient(account_at(port), "bodies", now, 1024)) as store:
                with pytest.raises(Unavailable, match="ContainerNotFound"):
                    await store.get(NAME, 10)
            wrong = account_at(port, key="d3Jvbmc=")
            async with AzureBlobStore(BlobClient(wrong, "bodies", now, 1024)) as store:
                with pytest.raises(NotAuthorized):
                    await store.prepare()
        async with AzureBlobStore(BlobClient(account_at(port), "bodies", now, 1024)) as store:
            with pytest.raises(Unavailable):
                await store.get(NAME, 10)


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("AccountName=contoso;AccountKey=YQ==", "contoso.blob.core.windows.net"),
        ("accountname=a1;AccountKey=YQ==;EndpointSuffix=example.net", "a1.blob.example.net"),
        ("UseDevelopmentStorage=true", "127.0.0.1"),
    ],
)
def test_a_connection_string_says_where_the_service_is(text: str, host: str) -> None:
    assert parse_blob_account(text).host == host


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("AccountName", "NAME=VALUE"),
        ("AccountKey=YQ==", "AccountName is missing"),
        ("AccountName=a", "AccountKey is missing"),
        ("AccountName=a;AccountKey=secret!", "Base64"),
        ("AccountName=a;AccountKey=YQ==;BlobEndpoint=ftp://x", "http"),
        ("AccountName=a;AccountKey=YQ==;BlobEndpoint=http://x:y", "BlobEndpoint"),
    ],
)
def test_a_wrong_connection_string_is_told_without_its_secret(text: str, what: str) -> None:
    with pytest.raises(InvalidRequest, match=what) as found:
        parse_blob_account(text)

    assert "secret" not in str(found.value)


@pytest.mark.parametrize("name", ["ab", "UPPER", "a--b", "a/b", "x" * 64])
def test_a_wrong_name_of_a_container_is_told(name: str) -> None:
    with pytest.raises(InvalidRequest, match="container"):
        BlobClient(account_at(1), name, now, 1024)


# --- a folder


async def test_a_folder_that_lost_its_mark_is_out(tmp_path: Path) -> None:
    """The folder without its mark may be the empty mount point of the store."""
    async with folder(tmp_path) as store:
        (tmp_path / "store" / "pairgate-claims").unlink()

        with pytest.raises(Unavailable):
            await store.get(NAME, 10)


async def test_a_file_that_a_crash_left_half_written_is_no_body_and_goes(tmp_path: Path) -> None:
    async with folder(tmp_path) as store:
        half = tmp_path / "store" / "ab" / ".half"
        fresh = tmp_path / "store" / "ab" / ".fresh"
        half.write_bytes(b"x")
        fresh.write_bytes(b"x")
        os.utime(half, (0, 0))

        assert await store.list("ab") == []
        assert not half.exists()
        assert fresh.exists()


YEAR = 365 * 86_400_000_000  # microseconds


async def test_a_clock_that_was_set_forward_by_years_is_not_believed_by_the_next_process(
    tmp_path: Path,
) -> None:
    """A store is opened three times in one boot: before, after, and when the clock is right."""

    async def told(boot: Boot | None) -> timedelta:
        store = FolderStore(tmp_path / "store", boot=lambda: boot)
        await store.prepare()
        return now() - await store.date()

    near = timedelta(minutes=5)
    assert abs(await told(Boot("one", 3 * YEAR // 2))) < near
    assert abs(await told(Boot("one", YEAR // 2)) - timedelta(days=365)) < near
    assert abs(await told(Boot("one", 3 * YEAR // 2))) < near
    assert abs(await told(Boot("two", YEAR // 2))) < near
    assert abs(await told(None)) < near


async def test_a_clock_that_was_right_only_later_is_believed(tmp_path: Path) -> None:
    """Set back, or set forward from a date before the program was built."""
    boots = [Boot("one", each * YEAR) for each in (60, 2, 30, 31)]
    for boot in boots:
        store = FolderStore(tmp_path / "store", boot=lambda boot=boot: boot)
        await store.prepare()
        assert abs(now() - await store.date()) < timedelta(minutes=5)


async def test_a_folder_that_lost_its_mark_tells_no_date(tmp_path: Path) -> None:
    async with folder(tmp_path) as store:
        (tmp_path / "store" / "pairgate-claims").unlink()

        with pytest.raises(Unavailable):
            await store.date()


async def test_a_write_that_fails_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(file: int) -> None:
        raise OSError(28, "No space left on device")

    async with folder(tmp_path) as store:
        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(StorageFull, match="No space left"):
            await store.put(NAME, b"x")

        assert list((tmp_path / "store" / "ab").iterdir()) == []


async def test_bodies_are_for_the_owner_alone(tmp_path: Path) -> None:
    async with folder(tmp_path) as store:
        await store.put(NAME, b"x")

    place = tmp_path / "store" / "ab" / NAME
    assert place.stat().st_mode & 0o077 == 0
    assert (tmp_path / "store").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("name", ["", "x", "../../etc/passwd", f"{NAME}.more", f"{NAME}/x"])
async def test_no_other_name_reaches_the_disk(tmp_path: Path, name: str) -> None:
    async with folder(tmp_path) as store:
        with pytest.raises(ValueError, match="isn't a name"):
            await store.put(name, b"x")


async def test_a_caller_that_gives_up_waiting_for_a_dead_disk_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alive = threading.Event()

    def hang(file: int) -> None:
        assert alive.wait(PATIENCE)

    async with folder(tmp_path) as store:
        monkeypatch.setattr(os, "fsync", hang)
        with trio.move_on_after(0.05) as scope:
            await store.put(NAME, b"x")
        alive.set()

    assert scope.cancelled_caught


@needs_root
async def test_a_folder_behind_a_link_of_another_user_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    give_link(tmp_path / "var", "disk")

    with pytest.raises(Unavailable, match=r"/var: this symbolic link belongs to another user"):
        async with folder(tmp_path / "var"):
            pass

    assert not any((tmp_path / "disk").iterdir())


async def test_a_folder_without_a_thread_to_write_is_unavailable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def no_thread(*_: object, **__: object) -> None:
        await trio.lowlevel.checkpoint()
        raise RuntimeError("can't start new thread")

    async with folder(tmp_path) as store:
        monkeypatch.setattr(trio.to_thread, "run_sync", no_thread)

        with pytest.raises(Unavailable, match="can't start new thread"):
            await store.put(NAME, b"body")
