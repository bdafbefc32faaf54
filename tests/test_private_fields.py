"""What a part of the pair keeps for itself is nobody else's to give."""

import importlib
import pkgutil
from collections.abc import Iterator
from inspect import getmembers, isclass

import attrs

from gateway import pairing


def classes() -> Iterator[type]:
    for module in pkgutil.iter_modules(pairing.__path__, f"{pairing.__name__}."):
        for _, found in getmembers(importlib.import_module(module.name), isclass):
            if found.__module__ == module.name and attrs.has(found):
                yield found


def test_a_private_field_is_no_argument_of_the_constructor() -> None:
    private = {
        f"{owner.__name__}.{field.name}": field.init
        for owner in classes()
        for field in attrs.fields(owner)
        if field.name.startswith("_")
    }

    assert "Rotation._cooling_down" in private
    assert [name for name, init in private.items() if init] == []
