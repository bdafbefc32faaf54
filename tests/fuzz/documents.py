"""Texts and documents: XML, JSON, SQL, configurations, credentials. Each is read by all readers."""

import json
import random
import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from gateway.app.status.sections import SECTIONS
from gateway.brokers.servicebus import receiver as rest_receiver
from gateway.brokers.storage_queue import deliveries as storage_deliveries
from gateway.capabilities import LONGEST_TOKEN
from gateway.config.errors import ConfigError
from gateway.config.file import parse
from gateway.domain.access import Issuer
from gateway.domain.entity import EntityPath
from gateway.domain.errors import GatewayError, InternalError, InvalidRequest, MessageError
from gateway.domain.message import Kind, Message, Typed
from gateway.domain.storage_queue import PopReceipt
from gateway.domain.topics.property_values import MessageReader
from gateway.extensions.cluster.tokens import HolderTokens
from gateway.frontends.storage_queue import messages
from gateway.frontends.storage_queue.notes import read_notes
from gateway.wire.amqp.message import encode_message
from gateway.wire.azure_blob import parse_blob_account, parse_page
from gateway.wire.http import strict_json
from gateway.wire.http.event_stream import EventParser
from gateway.wire.http.hosts import parse_server_url
from gateway.wire.http.messages import Headers, Request, Response
from gateway.wire.openid.jwt import check_terms, expiry_of, parse_jwt, subject_of
from gateway.wire.openid.keys import KeySet, parse_discovery, parse_keys
from gateway.wire.pairgate import listener_report
from gateway.wire.pairgate.admin_json import parse_answer
from gateway.wire.pairgate.control_calls import CONTROL_CALLS
from gateway.wire.pairgate.scale import parse_figures
from gateway.wire.pairgate.status import parse_status
from gateway.wire.servicebus import atom, atom_answers, batch, broker_properties
from gateway.wire.servicebus import connection_string as servicebus
from gateway.wire.servicebus import sas as servicebus_sas
from gateway.wire.servicebus.atom_operations import GetEntity, GetNamespace, GetRule, ListQueues
from gateway.wire.servicebus.emulator_config import parse_emulator_config
from gateway.wire.sql.action import compile_action
from gateway.wire.sql.filter import compile_filter
from gateway.wire.storage_queue import connection_string as storage
from gateway.wire.storage_queue import delegation, signing, xml
from gateway.wire.storage_queue import sas as storage_sas
from gateway.wire.storage_queue.address import parameters_of
from gateway.wire.storage_queue.service_properties import parse_properties
from tests.fuzz.by_input import ByInput, by
from tests.harness.openid import KINDS, OpenIdProvider, SigningKey

NOW: Final = datetime(2026, 11, 26, 12, tzinfo=UTC)
ORDERS: Final = EntityPath("orders")


def read_by(readers: Iterable[Callable[[], object]]) -> None:
    """
    Call each. Errors of the gateway are answers; all others are bugs.

    Raises:
        Exception: an error that no reader should raise.
    """
    for read in readers:
        try:
            read()
        except InternalError:
            raise
        except GatewayError:
            continue


# --- XML and JSON

_ATOM: Final = (
    *("/made", "/news", "/news/Subscriptions/all", "/news/Subscriptions/all/Rules/one"),
)
_ANSWERED: Final = (
    GetEntity(entity=ORDERS),
    ListQueues(),
    GetRule(topic=ORDERS, subscription="all", name="one"),
    GetNamespace(),
)


def read_xml(body: bytes) -> None:
    answer = Response(status=200, body=body)
    read_by(
        (
            *(lambda path=path: atom.parse_request(_put(path, body)) for path in _ATOM),  # type: ignore[misc]
            *(
                lambda asked=asked: atom_answers.parse_response(asked, answer)
                for asked in _ANSWERED
            ),  # type: ignore[misc]
            lambda: xml.parse_text(body),
            lambda: xml.parse_messages(body),
            lambda: xml.parse_queue_list(body),
            lambda: xml.parse_acl(body),
            lambda: xml.parse_stats(body),
            lambda: delegation.parse_key_info(body),
            lambda: delegation.parse_key(body),
            lambda: parse_properties(body),
            lambda: parse_page(answer),
        )
    )


ANSWERS = {kind for call in CONTROL_CALLS for kind in (call.answer, call.survey) if kind}


def _put(path: str, body: bytes) -> Request:
    target = f"{path}?api-version=2021-05"
    return Request(method="PUT", target=target, headers=Headers(), body=body)


def read_json(body: bytes) -> None:
    text = body.decode("utf-8", "surrogateescape")
    read_by(
        (
            lambda: [*batch.parse_batch(body)],
            lambda: parse_emulator_config(body),
            lambda: _read_broker_properties(body),
            *(partial(call.parse, body, {"targets": text}) for call in CONTROL_CALLS),
            *(partial(parse_answer, body, kind, "an answer") for kind in ANSWERS),
            lambda: listener_report.parse_report(body),
            lambda: parse_status(body, SECTIONS),
            lambda: parse_figures(body),
            lambda: read_notes(text),
            lambda: EventParser().feed(b"data: " + body + b"\n\n"),
            lambda: parse_keys(body),
            lambda: parse_discovery(body, ISSUER.issuer),
        )
    )


def _read_broker_properties(body: bytes) -> None:
    found = strict_json.as_object(strict_json.load(body, "x", max_bytes=2**16), "x")
    read_by(
        (
            lambda: broker_properties.message_of_broker_properties(found),
            lambda: broker_properties.delivery_of_broker_properties(
                found, Message(), lock_token=None
            ),
        )
    )


# --- SQL


_PARAMETERS: Final = {"@p": 1, "@text": "x", "@date": NOW, "@span": timedelta(1), "@none": None}
_MESSAGES: Final = (
    Message(),
    Message(
        message_id="m",
        subject="red",
        properties={"a": 1, "b": "x" * 3000, "c": 1.5, "d": None, "e": NOW, "f": True},
    ),
    Message(
        message_id=Typed(Kind.ULONG, 2**64 - 1),
        properties={"a": 2**63 - 1, "b": b"\xff", "c": float("nan"), "d": [1], "e": timedelta.max},
    ),
)


def read_sql(data: bytes) -> None:
    expression = data.decode("utf-8", "surrogateescape")
    read_by((lambda: _filter(expression), lambda: _action(expression)))


def _filter(expression: str) -> None:
    matches = compile_filter(expression, _PARAMETERS)
    for message in _MESSAGES:
        assert matches(MessageReader(message)) in {True, False}


def _action(expression: str) -> None:
    change = compile_action(expression, _PARAMETERS, lambda: str(UUID(int=1)))
    for message in _MESSAGES:
        try:
            encode_message(change(message))
        except (InvalidRequest, MessageError):  # the copy is dead-lettered then
            continue


# --- configurations


def read_config(data: bytes) -> None:
    """
    Raises:
        AssertionError: a mistake isn't told in words.
    """
    text = data.decode("utf-8", "replace")
    try:
        parse(text, source="x.toml", folder=Path("/nowhere"), environ={"SET": "value"})
    except ConfigError as error:
        problems = error.problems
    else:
        return
    assert problems
    for problem in problems:
        assert re.match(r"x\.toml: .*\w", problem, re.DOTALL), problem
        assert "Error(" not in problem, problem


# --- credentials

ISSUER: Final = Issuer(
    name="tests",
    issuer="https://login.example.net/tenant",
    audiences=("api://pairgate",),
    algorithms=("ES256", "RS256", "EdDSA"),
    clock_skew=60.0,
)


CLUSTER: Final = HolderTokens(1, ("a secret of a cluster, for tests only",), random.Random(0))


def read_sas(data: bytes) -> None:
    text = data.decode("utf-8", "surrogateescape")
    request = Request(
        method="GET", target=f"/account/queue?{text}", headers=Headers.of({"x-ms-date": text})
    )
    read_by(
        (
            lambda: _verified(text),
            lambda: storage_sas.parse_sas(parameters_of(f"/?{text}")),
            lambda: _signed(text),
            lambda: signing.strings_to_sign(request, "SharedKey", "account", "2021-01-01"),
            lambda: signing.strings_to_sign(request, "SharedKeyLite", "account", None),
            lambda: servicebus.parse_connection_string(text),
            lambda: storage.parse_storage_connection(text),
            lambda: parse_blob_account(text),
            lambda: parse_server_url(text),
            lambda: _of_a_cluster(text),
            lambda: rest_receiver.read_token(data),
            lambda: storage_deliveries.read_token(data, "token"),
        )
    )


def _of_a_cluster(text: str) -> None:
    """A made-up lock token or pop receipt, and one that was sealed and marked."""
    assert CLUSTER.holder_of(text) is None
    assert CLUSTER.sealed.unseal(ORDERS, text) is None
    assert messages.read_receipt(text, text, CLUSTER.marks) is None
    token = text.encode("utf-8", "surrogateescape")[:LONGEST_TOKEN].ljust(12)
    sealed = CLUSTER.sealed.seal(ORDERS, token)
    assert CLUSTER.sealed.unseal(ORDERS, sealed) == token
    receipt = PopReceipt(0, 0, token=sealed)
    written = messages.write_receipt(text, receipt, CLUSTER.marks)
    assert messages.read_receipt(written, text, CLUSTER.marks) == receipt


def _verified(text: str) -> None:
    token = servicebus_sas.parse_sas(text)
    assert token.resource is not None
    assert token.expires >= 0
    assert not servicebus_sas.verify(token, "another key")


def _signed(text: str) -> None:
    sas = storage_sas.parse_sas(parameters_of(f"/?{text}"))
    if sas is not None:
        signed = sas.string_to_sign("account", "queue")
        if sas.is_delegated:
            key = delegation.key_of(sas)
            assert delegation.tenant_of(delegation.identity_of(key))
            signing.sign(signed, delegation.value_of(b"a secret", "account", key))
    signing.parse_authorization(text)


@cache
def _provider() -> tuple[OpenIdProvider, KeySet]:
    provider = OpenIdProvider(ISSUER.issuer, [SigningKey.make(kind, kind) for kind in KINDS])
    return provider, parse_keys(provider.jwks())


def read_jwt(data: bytes) -> None:
    """A token as it comes, and one that is well signed and has these claims."""
    _, keys = _provider()
    text = data.decode("utf-8", "surrogateescape")

    def read(token: str) -> None:
        parsed = parse_jwt(token)
        expiry_of(parsed)
        subject_of(parsed, ISSUER)
        check_terms(parsed, ISSUER, NOW)
        keys.verify(parsed)

    read_by((lambda: read(text), lambda: read(_signed_token(data))))


def _signed_token(data: bytes) -> str:
    provider, _ = _provider()
    try:
        claims: Any = json.loads(data)
    except (ValueError, RecursionError):
        claims = None
    if not isinstance(claims, dict):
        return ""
    try:
        return next(key for key in provider.keys if key.algorithm == "ES256").sign(claims)
    except (TypeError, ValueError, RecursionError):  # claims that no provider can write
        return ""


# No pattern may read a byte more than once or twice, or a repeated bracket takes minutes.
_JSON: Final = by(rb'[{}\[\],:]|"(?:[^"\\]|\\.)*"?')
DOCUMENTS: Final = (
    ByInput(
        name="xml",
        check=read_xml,
        split=by(rb"<[^<>]*>?|&[^;&<]*;?"),
        words=(
            *(b"<![CDATA[", b"]]>", b"<!--", b"<!DOCTYPE a [<!ENTITY b 'c'>]>", b"&b;", b"&#0;"),
            *(b"&#xD800;", b"<?xml version='1.0' encoding='utf-7'?>", b"<a xmlns:b='c'>", b"</a>"),
            *(b" i:type='d6p1:int'", b"P1D", b"PT9999999999H", b"true", b"2026-11-26T12:00:00Z"),
        ),
    ),
    ByInput(
        name="json",
        check=read_json,
        split=_JSON,
        words=(
            *(b"{", b"[", b"null", b"true", b'""', b'"\\ud800"', b"NaN", b"-Infinity", b"1e400"),
            *(b'"a":', b",", b'"__proto__":1,', b"[" * 2000, b'{"a":' * 2000),
        ),
    ),
    ByInput(
        name="sql",
        check=read_sql,
        split=by(rb"\s+|[()=<>,]|'[^']*'?|[A-Za-z0-9_@.]+"),
        words=(
            *(
                b"AND ",
                b"OR ",
                b"NOT ",
                b"LIKE ",
                b"ESCAPE ",
                b"IN (",
                b"IS NULL",
                b"EXISTS(",
                b")",
            ),
            *(b"(", b"'%'", b"'_'", b"'a%b_c[d]'", b"@p", b"@none", b"sys.", b"user.", b"[a b]"),
            *(b"SET a = ", b"REMOVE ", b"; ", b"newid()", b"property('a')", b"+", b"-", b"/", b"%"),
            *(b"0", b"1.5e9", b"0x1F", b"'it''s'", b"--", b"a ", b"c / 0 "),
        ),
    ),
    ByInput(
        name="config",
        check=read_config,
        split=by(rb"\n|[\[\]=.,]|\"[^\"\n]*\"?"),
        words=(
            *(b"[pairing]\n", b"[namespaces.east]\n", b"[[endpoints]]\n", b"[limits]\n", b"= []\n"),
            *(b"= {}\n", b"= 1\n", b"= -1\n", b"= nan\n", b"= inf\n", b'= ""\n', b"= true\n"),
            *(b"= 2026-11-26\n", b"= ['a', 1]\n", b"= '1h'\n", b"= '10 MiB'\n", b"= 'env:SET'\n"),
            *(b"= 'file:/dev/null'\n", b"= '\\u0000'\n", b"= 'amqps://[::1'\n", b"= 'unix:'\n"),
        ),
    ),
    ByInput(
        name="sas",
        check=read_sas,
        split=by(rb"[&=;?/: ]|%[0-9A-Fa-f]{2}"),
        words=(
            *(b"SharedAccessSignature ", b"sr=", b"sig=", b"se=", b"skn=", b"sv=", b"%00", b"%ff"),
            *(b"%2", b"%ed%a0%80", b"Endpoint=sb://", b"AccountKey=", b"SharedKey a:", b"===="),
            *(b"\xed\xb2\x80", b"http://[::1", b"http://a:99999", b"sip=::1-"),
        ),
    ),
    ByInput(
        name="jwt",
        check=read_jwt,
        split=by(rb'[{}\[\],:.]|"(?:[^"\\]|\\.)*"?|[A-Za-z0-9_-]{4}'),
        words=(
            *(
                b"eyJhbGciOiJub25lIn0",
                b"eyJhbGciOiJIUzI1NiJ9",
                b"eyJhbGciOiJFUzI1NiJ9",
                b".",
                b"==",
            ),
            *(b'"exp":', b'"nbf":', b'"aud":', b'"iss":', b"1e400", b"null", b"[]", b'"\\ud800"'),
        ),
    ),
)
