"""Mistakes about `[claims]`."""

from pathlib import Path

import pytest

from gateway.extensions.claims.options import CLAIMS
from tests.config.texts import ONE, PAIR, config, problems, warnings


@pytest.mark.parametrize(
    ("store", "more", "problem"),
    [
        ("azure-blob:AccountName=contoso", "", None),
        ("azure-blob:AccountName=contoso", "key = { env = 'BASE64' }", "claims.store: leave out"),
        (
            "azure-blob:AccountName=contoso;BlobEndpoint=http://contoso.example",
            "",
            "claims.credential: needs TLS",
        ),
    ],
)
def test_a_claim_store_has_a_key_or_a_credential(
    store: str, more: str, problem: str | None
) -> None:
    text = f"""{ONE}
[claims]
store = "{store}"
credential = {{ kind = "managed-identity" }}
{more}
"""
    if problem is None:
        claims = config(text).of(CLAIMS)
        assert claims is not None
        assert claims.credential is not None
    else:
        (found,) = problems(text)
        assert found.startswith(problem)


@pytest.mark.parametrize(
    ("of_pair", "of_claims", "doubted"),
    [
        (False, False, []),
        (True, True, []),
        (True, False, ["claims.encrypt"]),
        (False, True, ["pairing.encrypt"]),
    ],
)
def test_a_backlog_of_which_half_is_encrypted_is_doubted(
    of_pair: bool, of_claims: bool, doubted: list[str], tmp_path: Path
) -> None:
    keys = "envelope_keys = [{ id = '1', key = { env = 'LONG_KEY' } }]"
    text = f"{PAIR}{keys}\nencrypt = {of_pair}\n[claims]\nstore = 'folder:x'\nencrypt = {of_claims}"
    found = warnings(text.replace("True", "true").replace("False", "false"), tmp_path)

    assert [each.partition(":")[0] for each in found if "encrypt" in each] == doubted
