"""The public library: each of its names is there, and is documented."""

import inspect
from importlib import import_module

import pytest

from gateway import capabilities, ports
from gateway.listening import items
from tests.references.library import PUBLIC, summary, value_of

NAMES = [(module, name) for module, names in PUBLIC.items() for name in names]


@pytest.mark.parametrize(("module", "name"), NAMES, ids=lambda each: each)
def test_a_public_name_and_its_public_methods_are_documented(module: str, name: str) -> None:
    found = value_of(module, name)
    value = found if inspect.isclass(found) or inspect.isroutine(found) else type(found)
    methods = {
        method: function
        for method, function in vars(value).items()
        if inspect.isclass(value) and inspect.isfunction(function) and not method.startswith("_")
    }
    bare = [method for method, function in methods.items() if not inspect.getdoc(function)]

    assert summary(found)
    # A method that a port or a base class documents needs no text of its own.
    assert [method for method in bare if not documented_elsewhere(value, method)] == []


def documented_elsewhere(value: type, method: str) -> bool:
    modules = (ports, capabilities, items)
    protocols = [each for module in modules for each in vars(module).values()]
    owners = [each for each in protocols if inspect.isclass(each) and method in vars(each)]
    return any(
        inspect.getdoc(vars(owner)[method])
        for owner in (*owners, *value.__mro__[1:])
        if method in vars(owner)
    )


def test_the_listeners_names_are_those_that_its_package_offers() -> None:
    offered = set(import_module("gateway.listening").__all__)

    assert set(PUBLIC["gateway.listening"]) == offered
