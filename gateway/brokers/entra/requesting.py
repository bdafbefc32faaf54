"""Requests access tokens by azure-identity, in a worker thread of the credential's own."""

from collections.abc import Callable
from typing import Final

import attrs
import trio

from gateway.brokers.entra.options import CredentialOptions
from gateway.brokers.entra.tokens import AccessToken
from gateway.domain.errors import CredentialRefused, NoToken, needs_extra, starting_thread

LONGEST: Final = 30.0  # seconds of one request, with everything that it takes


def _request(options: CredentialOptions, scope: str) -> AccessToken:
    # Imported in the thread, since it takes a fifth of a second.
    try:
        from gateway.brokers.entra.azure_identity import request_token
    except ImportError as error:  # it was found when the configuration was read
        raise CredentialRefused(f"credential: {error}; {needs_extra('entra')}") from error

    return request_token(options, scope)


@attrs.define(eq=False, kw_only=True)
class TokenRequests:
    """
    The requests of one credential. A request that hangs is given up; its thread then keeps the
    further requests waiting until it has ended, so that there is never more than one.
    """

    _options: CredentialOptions
    _scope: str
    _longest: float = LONGEST
    _blocking: Callable[[CredentialOptions, str], AccessToken] = _request
    _limiter: trio.CapacityLimiter = attrs.field(
        factory=lambda: trio.CapacityLimiter(1), init=False
    )

    async def request(self) -> AccessToken:
        """
        Return a new token. Cancelled, it leaves the thread to itself.

        Raises:
            CredentialRefused: the identity provider refuses the credential, or it's unusable, or
                a library is missing.
            NoToken: the identity provider can't be reached, fails, or doesn't answer.
        """
        with trio.move_on_after(self._longest):
            try:
                with starting_thread():
                    return await trio.to_thread.run_sync(
                        self._blocking,
                        self._options,
                        self._scope,
                        limiter=self._limiter,
                        abandon_on_cancel=True,
                    )
            except OSError as error:
                raise NoToken(f"no token can be asked for: {error.strerror or error}") from error
        raise NoToken(f"the identity provider didn't answer within {self._longest:.3g} s")
