"""Parts of the tests of stores that other tests need, too."""

from datetime import UTC, datetime

from gateway.wire.azure_blob import BlobAccount, parse_blob_account
from tests.harness.azurite import ACCOUNT, KEY


def now() -> datetime:
    return datetime.now(UTC)


def account_at(port: int, key: str = KEY) -> BlobAccount:
    return parse_blob_account(
        f"BlobEndpoint=http://127.0.0.1:{port}/{ACCOUNT};AccountName={ACCOUNT};AccountKey={key}"
    )
