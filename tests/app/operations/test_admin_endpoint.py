"""The credentials with which a command asks an admin endpoint."""

from pathlib import Path

import pytest

from gateway.app.failure import ExitCode, Failure
from gateway.app.operations.admin_choice import (
    AdminChoice,
    AdminTokenSource,
    admin_endpoints,
    no_admin,
)
from gateway.app.operations.admin_endpoint import AdminEndpoint, admin_at, check_authorization
from gateway.config.endpoints import Endpoint
from gateway.config.file import parse
from gateway.domain.access import Right
from gateway.domain.errors import NotAuthorized

HERE = "http://127.0.0.1:9640"
TEXT = """
[namespaces.here]
url = "memory:"

[[access]]
name = "operators"
key = { env = "KEY" }
rights = ["Manage"]
"""


def endpoint(token: AdminTokenSource, url: str = HERE) -> AdminEndpoint:
    config = parse(TEXT, source="x.toml", folder=Path("/nowhere"), environ={"KEY": "k"}).config
    return admin_at(config, url, "--url", AdminChoice(token=token))


def test_a_token_is_taken_before_the_keys_of_the_configuration() -> None:
    found = endpoint(AdminTokenSource(text="e30.e30.sig"))

    assert found.authorization(Right.MANAGE) == "Bearer e30.e30.sig"
    assert "sig" not in repr(found)


def test_a_token_that_was_renewed_in_its_file_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "token"
    found = endpoint(AdminTokenSource(file=file))
    headers = []
    for text in ("first", "second\n"):
        file.write_text(text)
        headers.append(found.authorization(Right.LISTEN))

    assert headers == ["Bearer first", "Bearer second"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "No such file"),
        (b"", "one token"),
        (b"two words", "one token"),
        (b"one\r\nX-Header: 1", "one token"),
        (b"x" * 100_000, "one token of up to 16384 characters"),
        (b"\xff\xfe", "isn't UTF-8"),
    ],
)
def test_a_file_without_a_token_is_named_and_not_shown(
    content: bytes | None, reason: str, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_bytes(content)
    found = endpoint(AdminTokenSource(file=file))

    with pytest.raises(NotAuthorized, match=rf"token: {reason}"):
        found.authorization(Right.LISTEN)
    with pytest.raises(Failure, match=reason) as failure:
        check_authorization(found, Right.LISTEN)

    assert failure.value.code is ExitCode.WRONG
    assert "X-Header" not in str(failure.value)


@pytest.mark.parametrize("url", ["http://gateway.example.net:9640", "http://192.0.2.1"])
def test_a_token_goes_to_no_other_machine_in_plain_text(url: str) -> None:
    with pytest.raises(Failure, match="https only"):
        endpoint(AdminTokenSource(text="token"), url)


def test_over_a_unix_socket_no_token_is_needed() -> None:
    assert (
        endpoint(AdminTokenSource(text="token"), "unix:/run/admin.sock").authorization(Right.MANAGE)
        is None
    )


@pytest.mark.parametrize(
    ("endpoints", "process", "found"),
    [
        (("serve", "syphon"), "serve", "serve"),
        (("serve", "syphon"), "syphon", "syphon"),
        (("syphon",), "serve", "syphon"),  # the configuration of a syphon of its own
        (("syphon",), "listen", None),
        (("syphon", "listen"), "serve", None),
    ],
)
def test_a_configuration_for_one_process_alone_needs_no_choice(
    endpoints: tuple[str, ...], process: str, found: str | None
) -> None:
    known = [Endpoint(protocol="admin", bind="127.0.0.1:1", process=each) for each in endpoints]
    choice = AdminChoice(process=process)

    chosen = {each.process for each in admin_endpoints(known, choice)}

    assert chosen == ({found} if found else set())


def test_the_process_that_does_not_answer_is_named_as_its_configuration_has_it() -> None:
    known = [Endpoint(protocol="admin", bind="127.0.0.1:1", process="syphon")]

    assert "no `pairgate syphon` answers" in str(no_admin(known, AdminChoice()))
