"""What goes wrong between a message and a handler."""

from gateway.domain.errors import GatewayError, MessageError, Outcome


class FormatError(MessageError):
    """A message isn't what the listener's format says. Trying again can't help: it is poison."""


class EndpointDown(GatewayError):
    """
    Raised by a handler: not the message is at fault, but what the handler needs isn't there.

    The listener pauses, for `retry_after` seconds if that is given, and then tries one message.
    """

    def __init__(
        self, message: str = "the endpoint is down", *, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class SubmitError(GatewayError):
    """A message couldn't be submitted; `outcome` says whether it may have arrived nevertheless."""

    def __init__(self, message: str, *, outcome: Outcome) -> None:
        super().__init__(message)
        self.outcome = outcome


def text_of(error: BaseException) -> str:
    """
    What a log may say of an error: a handler's own text could hold a part of a body, so that
    only the class is named.
    """
    own = isinstance(error, GatewayError)
    return f"{type(error).__name__}: {error}" if own and str(error) else type(error).__name__
