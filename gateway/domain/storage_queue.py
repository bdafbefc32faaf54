"""Storage accounts: a name and keys that grant all operations on a Queue service endpoint."""

import base64
import re
from typing import Final

import attrs
from attrs import validators

_NAME: Final = re.compile(r"[a-z0-9]{3,24}", re.ASCII)


@attrs.frozen(kw_only=True)
class StorageAccount:
    """
    An account with up to two keys, so that one can be changed while clients use the other. Without
    a key, its clients need a token of an identity provider.
    """

    name: str = attrs.field()
    keys: tuple[bytes, ...] = attrs.field(default=(), repr=False, validator=validators.max_len(2))

    @name.validator
    def _is_name(self, _: object, name: str) -> None:
        check_account_name(name)


def check_account_name(name: str) -> None:
    """
    Return if an account may have that name.

    Raises:
        ValueError: the name is too short, too long, or has other characters.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(f"3 to 24 lowercase letters and digits expected, found {name!r:.60}")


# The well-known account of Azurite, which developers have in their connection strings.
EMULATOR_ACCOUNT: Final = StorageAccount(
    name="devstoreaccount1",
    keys=(
        base64.b64decode(
            "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
        ),
    ),
)
