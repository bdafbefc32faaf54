"""
The texts of errors for clients: with the sentences of Service Bus that these look for, over AMQP
and over REST, and without the addresses of the namespaces behind the gateway.
"""

import re
from typing import Final

from gateway.domain.errors import (
    Busy,
    EntityExists,
    EntityNotFound,
    GatewayError,
    NotAuthorized,
    OutcomeUnknown,
    Unavailable,
)

# Node's SDK recognizes a missing entity only by these words, and retries if they are missing; Azure
# names the entity's address between the two parts.
_SENTENCES: Final[dict[type[GatewayError], str]] = {
    EntityNotFound: "The messaging entity that was asked for could not be found",
    EntityExists: "The messaging entity that was asked for already exists",
}
_BEGINNING: Final = "The messaging entity "
_BEHIND: Final = ": "
# Errors with an address in their text: those that `errors.locate` gives one, and those of a dial.
_LOCATED: Final = (Unavailable, OutcomeUnknown, Busy, NotAuthorized)
# A host and its port, where texts have them: "HOST:PORT: ..." or "HOST:PORT, ENTITY: ...". A time
# of the day has digits alone.
_ADDRESS: Final = re.compile(
    r"(?<![\w.:/\[-])(?:\[[0-9a-f:.]+\]|(?=[\w.-]*[A-Za-z.])[\w.-]+):[0-9]{1,5}(?=[:,;)\s]|$)"
)
_NAMESPACE: Final = "the namespace"


def sentence_of(error: GatewayError) -> str:
    """The error's text without addresses, behind the sentence that clients look for."""
    text = without_address(error)
    known = next((_SENTENCES[cls] for cls in type(error).__mro__ if cls in _SENTENCES), None)
    # The error of another Pairgate, or of Service Bus, has the sentence already.
    return text if known is None or _BEGINNING in text else f"{known}{_BEHIND}{text}"


def without_address(error: GatewayError) -> str:
    """
    The error's text, in which "the namespace" stands for its address: an address helps no client,
    and tells strangers where a broker is.
    """
    text = str(error)
    return _ADDRESS.sub(_NAMESPACE, text) if isinstance(error, _LOCATED) else text


def without_sentence(text: str) -> str:
    """The text of an error, if a Pairgate has put it behind its sentence."""
    for sentence in _SENTENCES.values():
        text = text.removeprefix(sentence + _BEHIND)
    return text
