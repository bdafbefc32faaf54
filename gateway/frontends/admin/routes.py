"""Paths of the endpoint `admin` of a gateway that the core doesn't know."""

from collections.abc import Iterator
from typing import ClassVar, Protocol

from gateway.frontends.admin.openapi import PathOperation
from gateway.wire.http.messages import Request, Response


class AdminRoutes(Protocol):
    """
    The paths that begin with `prefix`. The class is called with the announcements, the authorizer
    and the `AdminOptions` of the endpoint.
    """

    prefix: ClassVar[str]

    @staticmethod
    def operations() -> Iterator[PathOperation]:
        """The paths as the endpoint's description has them."""
        ...

    def takes(self, request: Request) -> bool:
        """True if the path is one of these, with that method."""
        ...

    def check_head(self, request: Request) -> None:
        """Raise the refusal of a client without the right, before the body of a POST is read."""
        ...

    async def answer(self, request: Request) -> Response:
        """
        Answer a request that this takes.

        Raises:
            BrokerError: the request is refused.
        """
        ...
