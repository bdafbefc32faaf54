"""Event about messages that a hedged send brought to both namespaces."""

import attrs

from gateway.domain.entity import EntityPath
from gateway.domain.events.gateway import Event


@attrs.frozen(kw_only=True)
class SentTwice(Event):
    """
    The primary accepted a send after its second copy (`hedge_after`) had gone to the backlog.

    With `certain` the backlog accepted its copy, so that the messages arrive twice; else the copy
    was cancelled with an unknown outcome.
    """

    entity: EntityPath
    messages: int
    certain: bool
