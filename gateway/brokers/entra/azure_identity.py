"""
Requests one access token by azure-identity, blocking. The extra `entra` installs it.

Each request makes a credential of its own: azure-identity would answer from its cache until minutes
before the token expires, and it reads a certificate's file only once.
"""

import json
import logging
import re
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote_plus, urlsplit

from azure.core.exceptions import AzureError
from azure.core.pipeline.transport import RequestsTransport
from azure.identity import (
    CertificateCredential,
    ClientSecretCredential,
    ManagedIdentityCredential,
    WorkloadIdentityCredential,
)

from gateway.brokers.entra.options import CredentialKind, CredentialOptions
from gateway.brokers.entra.tokens import AccessToken
from gateway.domain.errors import BrokerError, CredentialRefused, NoToken
from gateway.net.secret_files import check_secret_file

# Seconds of one try, of which `requesting.LONGEST` has room for a second.
_CONNECT_SECONDS: Final = 5.0
_READ_SECONDS: Final = 10.0
_MOST_TEXT: Final = 300  # characters of the identity provider's text that an error repeats
# Of Entra ID: its code and first sentences, without the ids of the request.
_AADSTS: Final = re.compile(r"AADSTS\d+:?.*?(?=\s*(?:Trace ID|Correlation ID|Timestamp|\\r|\\n|$))")
_TOKEN: Final = re.compile(r"eyJ[\w-]{5,}(?:\.[\w-]*){1,4}")  # the beginning of any JWT: `{"`
_HIDDEN: Final = "***"
# The endpoint of managed identities answers 404 and 410 while it is being updated.
_TEMPORARY: Final = frozenset({404, 408, 410, 429})
_LOGGERS: Final = ("azure", "msal", "urllib3")


class _Transport(RequestsTransport):  # type: ignore[misc]  # it has no types of its own
    """
    Notes which host was asked last, and its answer. azure-identity's errors don't name the host.
    """

    host: str = ""
    status: int | None = None
    failure: AzureError | None = None  # of the connection
    retry_after: float = 0.0
    said: str = ""  # the reason in its answer

    def send(self, request: Any, **options: Any) -> Any:
        """As `HttpTransport.send`."""
        self.host, self.said = urlsplit(request.url).netloc, ""
        self.status, self.failure = None, None
        try:
            response = super().send(request, **options)
        except AzureError as error:
            self.failure = error
            raise
        self.status = response.status_code
        self.retry_after = _number(response.headers.get("Retry-After"))
        if response.status_code >= 400:
            self.said = _reason_in(response.internal_response.text)
        return response


def request_token(options: CredentialOptions, scope: str) -> AccessToken:
    """
    Return a new token, after one attempt.

    Raises:
        CredentialRefused: the identity provider refuses the credential, or it's unusable.
        NoToken: the identity provider can't be reached, or fails.
    """
    _silence()
    transport = _Transport(
        connection_timeout=_CONNECT_SECONDS,
        read_timeout=_READ_SECONDS,
        **({} if options.ca is None else {"connection_verify": str(options.ca)}),
    )
    try:
        with _credential(options, transport) as credential:
            found = credential.get_token_info(scope)
    except Exception as error:
        raise _failure(error, transport, options) from None
    renew = None if found.refresh_on is None else datetime.fromtimestamp(found.refresh_on, UTC)
    return AccessToken(
        text=found.token, expires=datetime.fromtimestamp(found.expires_on, UTC), renew=renew
    )


def _credential(options: CredentialOptions, transport: _Transport) -> Any:
    # Without retries: the caller tries again, and nothing waits for one request that long.
    settings: dict[str, Any] = {"transport": transport, "retry_total": 0}
    client_id = options.client_id or None
    if options.kind is CredentialKind.MANAGED_IDENTITY:
        return ManagedIdentityCredential(client_id=client_id, **settings)
    settings["disable_instance_discovery"] = not options.instance_discovery
    if options.authority:
        settings["authority"] = options.authority
    if options.kind is CredentialKind.WORKLOAD_IDENTITY:
        return WorkloadIdentityCredential(
            tenant_id=options.tenant_id or None,
            client_id=client_id,
            token_file_path=None if options.token_file is None else str(options.token_file),
            **settings,
        )
    if options.kind is CredentialKind.CLIENT_SECRET:
        return ClientSecretCredential(
            options.tenant_id, options.client_id, options.secret, **settings
        )
    assert options.certificate is not None, "the options check it"
    check_secret_file(options.certificate)
    return CertificateCredential(
        options.tenant_id,
        options.client_id,
        str(options.certificate),
        password=options.password or None,
        send_certificate_chain=options.send_chain,
        **settings,
    )


def _failure(error: Exception, transport: _Transport, options: CredentialOptions) -> BrokerError:
    host, status = transport.host, transport.status
    if transport.failure is not None:
        return NoToken(f"identity provider {host}: {_text(transport.failure, options)}")
    if transport.said:
        error = ValueError(transport.said)
    if status is None:  # nothing was asked: a file or a setting is wrong
        return CredentialRefused(f"credential: {_text(error, options)}")
    said = f"identity provider {host}: HTTP status {status}: {_text(error, options)}"
    if status >= 500 or status in _TEMPORARY or status < 400:
        return NoToken(said, retry_after=transport.retry_after)
    return CredentialRefused(said)


def _text(error: Exception, options: CredentialOptions) -> str:
    """
    The error's text in one line, without secrets: a provider may repeat the secrets of a request.
    """
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}"
    text = " ".join(str(error).split())
    if told := _AADSTS.search(text):
        text = told[0]
    for secret in filter(None, (options.secret, options.password)):
        text = text.replace(secret, _HIDDEN).replace(quote_plus(secret), _HIDDEN)
    text = _TOKEN.sub(_HIDDEN, text)
    return text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]}..."


def _reason_in(body: str) -> str:
    """The reason in the JSON of a refusal; empty if the answer has none."""
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        return ""
    fields = content if isinstance(content, dict) else {}
    return str(fields.get("error_description") or fields.get("message") or "")


def _number(text: str | None) -> float:
    try:
        return max(0.0, float(text or 0))
    except ValueError:  # a date
        return 0.0


def _silence() -> None:
    """Keep the libraries' lines out of the process's log; failures are reported as events."""
    for name in _LOGGERS:
        logger = logging.getLogger(name)
        if logger.propagate:
            logger.addHandler(logging.NullHandler())
            logger.propagate = False
