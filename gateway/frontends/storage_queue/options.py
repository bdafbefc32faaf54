"""Options of a Storage Queue endpoint. Importing this module doesn't import the front end."""

import attrs
from attrs import validators


@attrs.frozen(kw_only=True)
class StorageQueueOptions:
    """
    Options of a Storage Queue endpoint. Times are in seconds. The SDKs wait 60 for a response.
    """

    secure: bool = False  # True: clients connect with TLS
    retry_for: float = attrs.field(default=50.0, validator=validators.gt(0.0))
