"""Errors between a message and its handler."""

from gateway.domain.errors import GatewayError, MessageError, Outcome


class FormatError(MessageError):
    """A message doesn't have the listener's format. A retry can't help: the message is poison."""


class EndpointDown(GatewayError):
    """
    Raised by a handler if the endpoint that it needs is down, which isn't the message's fault.

    The listener pauses, for `retry_after` seconds if given, and then tries one message.
    """

    def __init__(
        self, message: str = "the endpoint is down", *, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class SubmitError(GatewayError):
    """
    A message couldn't be submitted; `outcome` says whether it may have been accepted nevertheless.
    """

    def __init__(self, message: str, *, outcome: Outcome) -> None:
        super().__init__(message)
        self.outcome = outcome


def text_of(error: BaseException) -> str:
    """
    The text of an error for the log: only the class name, because a handler's own text might
    contain a part of a body.
    """
    own = isinstance(error, GatewayError)
    return f"{type(error).__name__}: {error}" if own and str(error) else type(error).__name__
