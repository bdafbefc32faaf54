"""URLs that may have a secret in them."""

from urllib.parse import SplitResult, urlsplit


def split_url(text: str) -> SplitResult:
    """
    The parts of a URL, whose `port` can be read.

    Raises:
        ValueError: host or port isn't valid. The error shows nothing of the text: where a password
            has a slash, its start is taken for the port.
    """
    try:
        parts = urlsplit(text)
        _ = parts.port
    except ValueError:
        raise ValueError("no valid host and port") from None
    return parts
