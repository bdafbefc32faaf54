"""azure-identity against an identity provider as a process: kinds of credentials, and failures."""

from pathlib import Path
from typing import Any

import attrs
import jwt
import pytest
import trio

from gateway.brokers.entra.azure_identity import request_token
from gateway.brokers.entra.options import (
    SERVICE_BUS_SCOPE,
    STORAGE_SCOPE,
    CredentialKind,
    CredentialOptions,
)
from gateway.brokers.entra.tokens import AccessToken
from gateway.domain.errors import BrokerError, CredentialRefused, NoToken
from tests.harness.identity_provider import (
    CLIENT,
    SECRET,
    TENANT,
    IdentityProvider,
    write_app_certificate,
)
from tests.harness.secret_files import write_secret

pytestmark = pytest.mark.live
ASSERTION = jwt.encode({"sub": "system:serviceaccount:shop:gateway"}, "k" * 32, "HS256")


def with_secret(provider: IdentityProvider, **changes: Any) -> CredentialOptions:
    return attrs.evolve(
        CredentialOptions(
            kind=CredentialKind.CLIENT_SECRET,
            tenant_id=TENANT,
            client_id=CLIENT,
            secret=SECRET,
            authority=provider.authority,
            instance_discovery=False,
            ca=provider.ca,
        ),
        **changes,
    )


async def asked(options: CredentialOptions, scope: str = SERVICE_BUS_SCOPE) -> AccessToken:
    return await trio.to_thread.run_sync(request_token, options, scope)


async def test_each_kind_of_credential_gets_a_token(
    provider: IdentityProvider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = write_app_certificate(tmp_path / "plain.pem")
    locked = write_app_certificate(tmp_path / "locked.pem", "pass")
    assertion = tmp_path / "assertion"
    assertion.write_text(ASSERTION)
    provider.allow_assertion(ASSERTION)
    secret = with_secret(provider)
    of_certificate = attrs.evolve(secret, kind=CredentialKind.CLIENT_CERTIFICATE, secret="")
    kinds = [
        secret,
        attrs.evolve(of_certificate, certificate=plain),
        attrs.evolve(of_certificate, certificate=plain, send_chain=True),
        attrs.evolve(of_certificate, certificate=locked, password="pass"),
        attrs.evolve(
            secret, kind=CredentialKind.WORKLOAD_IDENTITY, secret="", token_file=assertion
        ),
    ]
    for options in kinds:
        if options.certificate is not None:
            provider.allow(options.certificate)
        await check_token(await asked(options), CLIENT, "https://servicebus.azure.net")
        await check_token(await asked(options, STORAGE_SCOPE), CLIENT, "https://storage.azure.com")

    for name, value in provider.app_service.items():
        monkeypatch.setenv(name, value)
    managed = CredentialOptions(kind=CredentialKind.MANAGED_IDENTITY)
    of_user = attrs.evolve(managed, client_id=CLIENT)
    await check_token(await asked(managed), "system", "https://servicebus.azure.net")
    await check_token(await asked(of_user), CLIENT, "https://servicebus.azure.net")
    for name in provider.app_service:
        monkeypatch.delenv(name)
    for name, value in provider.machine.items():
        monkeypatch.setenv(name, value)
    await check_token(await asked(managed), "system", "https://servicebus.azure.net")
    await check_token(await asked(of_user), CLIENT, "https://servicebus.azure.net")


async def check_token(token: AccessToken, client: str, audience: str) -> None:
    claims = jwt.decode(token.text, options={"verify_signature": False})

    assert (claims["appid"], claims["aud"]) == (client, audience)
    # The answer's way counts, too: seconds, on a busy machine, of the token's hour.
    assert abs(token.expires.timestamp() - claims["exp"]) <= 30
    assert token.text not in repr(token)


async def test_each_request_gets_a_new_token(provider: IdentityProvider) -> None:
    """A token that azure-identity has kept would be renewed only minutes before it expires."""
    options = with_secret(provider)
    for _ in range(2):
        await asked(options)

    assert len(provider.requests()) == 2


async def test_a_refusal_says_why_and_no_secret(provider: IdentityProvider, tmp_path: Path) -> None:
    provider.answer(echo=True)
    assertion = tmp_path / "assertion"
    assertion.write_text(ASSERTION)
    good = with_secret(provider)
    workload = attrs.evolve(
        good, kind=CredentialKind.WORKLOAD_IDENTITY, secret="", token_file=assertion
    )
    certificate = attrs.evolve(
        good,
        kind=CredentialKind.CLIENT_CERTIFICATE,
        certificate=write_app_certificate(tmp_path / "other.pem"),
    )
    wrong_secret = "wrong+secret/of=mine"
    for options, text in (
        (attrs.evolve(good, tenant_id="other.example"), "AADSTS90002: Tenant 'other.example' not"),
        (attrs.evolve(good, client_id="nobody"), "AADSTS700016: Application 'nobody' was not fou"),
        (attrs.evolve(good, secret=wrong_secret), "AADSTS7000215: Invalid client secret"),
        (workload, "AADSTS700027: The assertion isn't signed"),
        (certificate, "AADSTS700027: The assertion isn't signed"),
    ):
        error = await failure(options)
        assert isinstance(error, CredentialRefused), error
        assert f"localhost:{provider.tls_port}" in str(error)
        assert text in str(error)
        assert "Trace ID" not in str(error)
        for secret in (SECRET, wrong_secret, ASSERTION, "wrong%2Bsecret", "eyJ"):
            assert secret not in str(error)


async def failure(options: CredentialOptions) -> BrokerError:
    with pytest.raises(BrokerError) as caught:
        await asked(options)
    return caught.value


async def test_a_provider_that_fails_is_not_a_refusal(
    provider: IdentityProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = with_secret(provider)
    managed = CredentialOptions(kind=CredentialKind.MANAGED_IDENTITY)
    for name, value in provider.machine.items():
        monkeypatch.setenv(name, value)
    for status in (429, 500, 503):
        provider.answer(status=status)
        for each in (options, managed):
            error = await failure(each)
            assert isinstance(error, NoToken), error
            assert f"HTTP status {status}" in str(error)
    untrusted = attrs.evolve(options, ca=None)
    for each, text in ((untrusted, "certificate verify failed"),):
        error = await failure(each)
        assert isinstance(error, NoToken), error
        assert text in str(error)
    await provider.server.kill()
    for each in (options, managed):
        error = await failure(each)
        assert isinstance(error, NoToken), error
        assert "refused" in str(error)
    await provider.server.start()


async def test_a_managed_identity_that_there_is_not_is_a_refusal(
    provider: IdentityProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider.answer(refuses=True)
    managed = CredentialOptions(kind=CredentialKind.MANAGED_IDENTITY)
    for environment in (provider.machine, provider.app_service):
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        error = await failure(managed)
        assert isinstance(error, CredentialRefused), error
        assert "Identity not found" in str(error)


async def test_a_mistake_is_named_before_anything_is_asked(
    provider: IdentityProvider, tmp_path: Path
) -> None:
    good = with_secret(provider)
    certificate = attrs.evolve(good, kind=CredentialKind.CLIENT_CERTIFICATE)
    workload = attrs.evolve(good, kind=CredentialKind.WORKLOAD_IDENTITY)
    locked = write_app_certificate(tmp_path / "locked.pem", "pass")
    garbage = tmp_path / "garbage.pem"
    write_secret(garbage, "garbage")
    exposed = write_app_certificate(tmp_path / "exposed.pem")
    exposed.chmod(0o644)
    for options, text in (
        (attrs.evolve(certificate, certificate=tmp_path / "none.pem"), "none.pem: No such file"),
        (attrs.evolve(certificate, certificate=garbage), "PEM or PKCS12"),
        (attrs.evolve(certificate, certificate=exposed), "exposed.pem: every user"),
        (attrs.evolve(certificate, certificate=locked), "Password"),
        (attrs.evolve(workload, token_file=tmp_path / "none"), "none: No such file"),
        (attrs.evolve(workload, tenant_id=""), "tenant_id"),
    ):
        error = await failure(options)
        assert isinstance(error, CredentialRefused), error
        assert text in str(error)
    assert provider.requests() == []
