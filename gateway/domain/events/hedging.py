"""Event about messages that one send brought to a namespace twice, or may have."""

import attrs

from gateway.domain.entity import EntityPath
from gateway.domain.events.gateway import Event


@attrs.frozen(kw_only=True)
class SentTwice(Event):
    """
    The primary accepted a send of which there may be another copy: of an earlier attempt without an
    answer, or of a hedge (`hedge_after`), which went to the backlog.

    With `certain` the backlog accepted the hedge, and the messages arrive twice. Else the outcome
    of the other copy is unknown.
    """

    entity: EntityPath
    messages: int
    certain: bool
