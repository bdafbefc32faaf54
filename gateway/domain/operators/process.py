"""Orders to a process as a whole: to reload its configuration, and to drain before its end."""

import enum

import attrs
from attrs import validators

from gateway.domain.errors import InvalidRequest
from gateway.domain.operators.control import check_reason


class ProcessAction(enum.Enum):
    RELOAD = "reload"  # read the configuration again
    DRAIN = "drain"  # take no more work, finish, end


@attrs.frozen(kw_only=True)
class ProcessOrder:
    """
    An operator's call that reloads or drains a process.

    Raises:
        InvalidRequest: the reason is too long; a reload is to be waited for, or a drain is for all.
    """

    action: ProcessAction
    reason: str = ""
    wait: bool = False  # for the end of the drain
    # Of a reload: by its record, also let the pair's other processes read theirs again.
    everywhere: bool = False

    def __attrs_post_init__(self) -> None:
        check_reason(self.reason)
        if self.wait and self.action is not ProcessAction.DRAIN:
            raise InvalidRequest("wait: is for a drain")
        if self.everywhere and self.action is not ProcessAction.RELOAD:
            raise InvalidRequest("everywhere: is for a reload")


@attrs.frozen(kw_only=True)
class ProcessState:
    """The parts of a process's state that these orders change."""

    ready: bool
    reason: str  # why it is ready or not
    log_level: str
    access: tuple[str, ...] = ()  # names of the access policies in effect
    place: str = ""  # as the records of its pair name the process; empty: it leaves none


@attrs.frozen(kw_only=True)
class Workload:
    """The work that a drain finishes. None: not known."""

    unit: str  # connections, messages or processes
    done: int | None  # since the start
    left: int | None  # not finished


@attrs.frozen(kw_only=True)
class DrainReport:
    """The result of a drain that has ended. None: not known."""

    unit: str
    finished: int | None  # since the drain began
    left: int | None  # cut off, or to be delivered again
    seconds: float = attrs.field(validator=validators.ge(0.0))


@attrs.frozen(kw_only=True)
class ProcessAnswer:
    """
    The result of such an order: the state before and after it. `changed`: it had something to do.
    """

    action: str
    changed: bool
    before: ProcessState
    after: ProcessState
    applied: tuple[str, ...] = ()  # changed sections that a reload has put into effect
    needs_restart: tuple[str, ...] = ()  # changed sections that a reload can't apply
    warnings: tuple[str, ...] = ()  # about the new configuration
    report: DrainReport | None = None  # of a drain that was waited for
