"""Values of a type in a store of bytes."""

import json
from typing import Final, Generic, TypeVar

import attrs
import cattrs

from gateway.listening.items import strict_converter
from gateway.ports import Versioned

V = TypeVar("V")

Store = Versioned[bytes | None]
_CONVERTER: Final = strict_converter()


@attrs.frozen
class Values(Generic[V]):
    """
    Implements `Versioned` for values of one attrs class (or any other type that cattrs knows), each
    stored as JSON. A key without a value reads as `default`.
    """

    store: Store
    type: type[V]
    default: V
    converter: cattrs.Converter = _CONVERTER

    async def read(self, key: str) -> tuple[V, str]:
        """
        As `Versioned.read`.

        Raises:
            ValueError: the stored bytes aren't a value of this type.
        """
        stored, etag = await self.store.read(key)
        if stored is None:
            return self.default, etag
        try:
            return self.converter.structure(json.loads(stored), self.type), etag
        except (
            cattrs.BaseValidationError,
            LookupError,
            RecursionError,
            TypeError,
            ValueError,
        ) as error:
            raise ValueError(
                f"{key}: the stored value isn't of type {self.type.__name__}"
            ) from error

    async def write(self, key: str, value: V, *, if_match: str) -> str:
        """As `Versioned.write`."""
        tree = self.converter.unstructure(value, unstructure_as=self.type)
        text = json.dumps(tree, ensure_ascii=False, separators=(",", ":"))
        return await self.store.write(key, text.encode(), if_match=if_match)
