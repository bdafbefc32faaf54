"""Operations on several shards, one after the other, that fail halfway."""

from collections.abc import Iterator
from contextlib import contextmanager

from gateway.domain.errors import BrokerError, Outcome, OutcomeUnknown


@contextmanager
def halfway(done: object, what: str) -> Iterator[None]:
    """
    A context for the next step. `done` is true if an earlier one has changed something, and `what`
    says so.

    Raises:
        OutcomeUnknown: the step had an error that says that nothing was done, though it was.
        BrokerError: any other error of the step.
    """
    try:
        yield
    except BrokerError as error:
        if done and error.outcome is Outcome.NOT_SENT:
            raise OutcomeUnknown(f"{what}: {error}") from error
        raise
