"""
Probes that an operator asks for: they ask the primary at once, instead of when a probe is due.
"""

from collections.abc import Mapping
from typing import Final

import attrs

from gateway.domain.operators.control import check_reason, check_targets

ACTION: Final = "probe"


@attrs.frozen(kw_only=True)
class ProbeOrder:
    """
    An operator's order to probe troubled entities.

    Raises:
        InvalidRequest: a target is malformed, there are none or too many, or the reason is too
            long.
    """

    targets: tuple[str, ...]  # entities and patterns
    reason: str = ""

    def __attrs_post_init__(self) -> None:
        check_targets(self.targets)
        check_reason(self.reason)


@attrs.frozen(kw_only=True)
class ProbeResult:
    """The result of one probe."""

    answered: bool  # in time, by an entity that can be sent to
    seconds: float
    text: str = ""  # why it counts as a failure


@attrs.frozen(kw_only=True)
class ProbeAnswer:
    """
    The results of an order, and the states of the probed entities before and after it. `changed`
    is false if all probes were in progress already.
    """

    action: str
    targets: tuple[str, ...]
    changed: bool
    before: Mapping[str, str]  # by entity
    after: Mapping[str, str]
    probes: Mapping[str, ProbeResult]
    more: int = 0  # troubled entities that the targets match, and that this order didn't probe
