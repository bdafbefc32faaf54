"""`[move]`, and what is wrong with it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import attrs
from attrs import validators

from gateway.config.endpoints import RABBITMQ
from gateway.config.options import Config
from gateway.config.problems import no_namespace
from gateway.domain.errors import InvalidRequest
from gateway.domain.operators.control import EVERYTHING, check_target
from gateway.extensions.tables import Table


@attrs.frozen(kw_only=True)
class MoveOptions:
    """`[move]`: allows operators to move entities of the primary to the namespace `to`."""

    to: str = attrs.field(validator=validators.min_len(1))
    # Names and patterns: their receivers can be served from both namespaces.
    entities: tuple[str, ...] = attrs.field(default=(EVERYTHING,), validator=validators.min_len(1))
    # A folder that all processes of the pair share: the stage of each entity, and the reports.
    state: Path = Path("var/move")


MOVE: Final = Table[MoveOptions | None](name="move", kind=MoveOptions | None, missing=None)


def target(config: Config) -> Iterator[str]:
    """The name of the namespace that entities are moved to."""
    options = config.of(MOVE)
    if options is not None:
        yield options.to


def problems(config: Config) -> Iterator[str]:
    """Yield a line for each error; each begins with the path of a key."""
    options = config.of(MOVE)
    if options is None:
        return
    yield from _of_target(config, options.to)
    for each in options.entities:
        try:
            check_target(each)
        except InvalidRequest as error:
            yield f"move.entities: {error}"
    for index, endpoint in enumerate(config.endpoints):
        if endpoint.protocol == RABBITMQ and config.is_home_rabbitmq:
            yield (
                f"endpoints[{index}].protocol: {RABBITMQ} leads its clients to the primary itself,"
                " which a move leaves: remove the endpoint or [move]"
            )


def _of_target(config: Config, name: str) -> Iterator[str]:
    if name not in config.namespaces:
        yield f"move.to: {no_namespace(name, config.namespaces)}"
    elif name == config.home_name:
        yield f"move.to: another namespace than {name!r} expected, which is left"
    elif config.pairing is not None and name == config.pairing.secondary:
        yield f"move.to: {name!r} is the secondary, which has the backlog"
