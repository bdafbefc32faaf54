"""Options of an admin endpoint. Importing this module doesn't import the front end."""

import attrs
from attrs import validators


@attrs.frozen(kw_only=True)
class AdminOptions:
    """Options of an admin endpoint. Times are seconds."""

    answer_timeout: float = attrs.field(default=5.0, validator=validators.gt(0.0))
    # A stream is never silent for longer, so that its reader knows that it still works.
    keep_alive: float = attrs.field(default=15.0, validator=validators.gt(0.0))
