"""The sentences of Service Bus's errors that its clients look for, over AMQP and over REST."""

from typing import Final

from gateway.domain.errors import EntityExists, EntityNotFound, GatewayError

# Node's SDK recognizes a missing entity only by these words, and retries if they are missing; Azure
# names the entity's address between the two parts.
_SENTENCES: Final[dict[type[GatewayError], str]] = {
    EntityNotFound: "The messaging entity that was asked for could not be found",
    EntityExists: "The messaging entity that was asked for already exists",
}
_BEGINNING: Final = "The messaging entity "
_BEHIND: Final = ": "


def sentence_of(error: GatewayError) -> str:
    """The error's text, behind the sentence that clients look for."""
    text = str(error)
    known = next((_SENTENCES[cls] for cls in type(error).__mro__ if cls in _SENTENCES), None)
    # The error of another Pairgate, or of Service Bus, has the sentence already.
    return text if known is None or _BEGINNING in text else f"{known}{_BEHIND}{text}"


def without_sentence(text: str) -> str:
    """The text of an error, if a Pairgate has put it behind its sentence."""
    for sentence in _SENTENCES.values():
        text = text.removeprefix(sentence + _BEHIND)
    return text
