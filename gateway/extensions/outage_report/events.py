"""Event of the end of an outage."""

import attrs

from gateway.domain.events.gateway import Event


@attrs.frozen(kw_only=True)
class OutageOver(Event):
    """
    An outage of the primary is over: its last entity is back and the backlog is empty. The figures
    are those of `processes` processes of the pair, from the first entity in trouble on; None: not
    known.
    """

    cause: str
    seconds: float
    entities: int
    diverted: int | None  # messages
    moved: int | None  # by syphons; None: another process moves them, and tells nobody
    twice: int | None
    possibly_twice: int | None  # of producers
    possibly_twice_by_syphon: int | None
    longest_stall: float | None  # seconds of the slowest send of a gateway in trouble
    dead_lettered: int
    processes: int
    left_out: int  # processes whose figures aren't known
    empty: bool | None  # None: nobody could tell whether the backlog is empty
