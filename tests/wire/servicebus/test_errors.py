import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain import errors
from gateway.domain.errors import (
    BrokerError,
    Busy,
    CredentialRefused,
    EntityDisabled,
    EntityExists,
    EntityNotFound,
    HolderSilent,
    InvalidRequest,
    LockLost,
    LoginRefused,
    MessageTooLarge,
    NoAnswer,
    NotAuthorized,
    NoToken,
    NotOrderer,
    NotSupported,
    Outcome,
    OutcomeUnknown,
    PartlyAccepted,
    PreconditionFailed,
    QuotaExceeded,
    StorageFull,
    TooLargeToForward,
    Unavailable,
    Unreachable,
)
from gateway.wire.http.messages import Headers, Response
from gateway.wire.servicebus.errors import build_error, parse_error

# Of a gateway's own connections and credentials, or of its cluster: clients are told what they
# extend.
LOCAL = {
    Unreachable,
    NoAnswer,
    PartlyAccepted,
    HolderSilent,
    NotOrderer,
    NoToken,
    CredentialRefused,
    LoginRefused,
    TooLargeToForward,
}
ALL = [
    error
    for error in vars(errors).values()
    if isinstance(error, type) and issubclass(error, BrokerError) and error is not BrokerError
    if error not in LOCAL
]


def answer(status: int, detail: str = "", **headers: str) -> Response:
    body = f"<Error><Code>{status}</Code><Detail>{detail}</Detail></Error>" if detail else ""
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    return Response(status=status, headers=Headers.of(fields), body=body.encode())


@given(
    st.sampled_from(ALL),
    st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1).map(str.strip),
)
def test_between_pairgates_every_error_arrives_as_it_was(kind, text):
    arrived = parse_error(build_error(kind(text)))

    assert type(arrived) is kind
    assert str(arrived) == text or "Tracking" in text or not text or "\ufffd" in str(arrived)


@pytest.mark.parametrize("kind", ALL)
def test_a_reader_of_the_status_alone_is_never_told_too_much(kind):
    response = build_error(kind("text"))

    assert response.headers.get("X-Pairgate") == "1"
    if kind.outcome is Outcome.UNKNOWN:
        assert response.status == 504
        assert response.headers.get("X-Pairgate-Outcome") == "unknown"
    elif response.status >= 500:
        assert response.headers.get("X-Pairgate-Outcome") == "not-sent"


def test_an_error_without_its_body_still_says_what_it_is():
    response = attrs.evolve(build_error(EntityNotFound("no queue 'orders'")), body=b"")

    assert str(parse_error(response)) == "entity-not-found, HTTP status 404"
    assert str(parse_error(answer(413))) == "HTTP status 413"


def test_busy_says_how_long():
    response = build_error(Busy(retry_after=1.5))

    arrived = parse_error(response)

    assert response.status == 503
    assert response.headers.get("Retry-After") == "2"
    assert arrived.retry_after == 2.0


def test_a_full_disk_has_a_status_of_its_own():
    assert build_error(StorageFull("full")).status == 507


def test_an_error_of_a_kind_made_elsewhere_is_answered_as_its_parent():
    class Fuller(StorageFull):
        pass

    assert type(parse_error(build_error(Fuller("full")))) is StorageFull


def test_a_text_is_written_so_that_any_parser_reads_it():
    response = build_error(InvalidRequest("<&> \x00\ufffe"))

    assert str(parse_error(response)) == "<&> \ufffd\ufffd"


@pytest.mark.parametrize(
    ("response", "kind"),
    [
        (answer(400, "bad"), InvalidRequest),
        (answer(401, "InvalidSignature"), NotAuthorized),
        (answer(403, "The queue's size quota has been exceeded"), QuotaExceeded),
        (answer(403, "the queue is full"), QuotaExceeded),
        (answer(403, "The message size exceeds the limit"), MessageTooLarge),
        (answer(403, "Messaging entity 'q' is currently disabled"), EntityDisabled),
        (answer(403, "Ip has been prevented to connect to the endpoint"), NotAuthorized),
        (answer(404, "no such queue"), EntityNotFound),
        (answer(408, "timeout"), OutcomeUnknown),
        (answer(409, "SubCode=40000. it exists"), EntityExists),
        (answer(409, "SubCode=40901. Another conflicting operation is in progress"), Busy),
        (answer(410, "no such queue"), EntityNotFound),
        (answer(412, "stale"), PreconditionFailed),
        (answer(413), MessageTooLarge),
        (answer(418, "a teapot"), InvalidRequest),
        (answer(429, "slow down"), Busy),
        (answer(500, "SubCode=50000. internal"), OutcomeUnknown),
        (answer(500, "SubCode=50001. overloaded"), Busy),
        (answer(501, "no such operation"), NotSupported),
        (answer(502, "bad gateway"), OutcomeUnknown),
        (answer(503, "50009: the namespace is being throttled"), Busy),
        (answer(503, "the service is not available"), Busy),
        (answer(503, "later", Retry_After="7"), Busy),
        (answer(503, X_Pairgate_Outcome="not-sent"), Unavailable),
        (answer(504), OutcomeUnknown),
        (answer(504, X_Pairgate_Outcome="unknown"), OutcomeUnknown),
        (answer(507, "the disk is full"), StorageFull),
        (answer(301, "moved"), OutcomeUnknown),
        (answer(200), OutcomeUnknown),
        (answer(599, X_Pairgate_Error="from-the-future"), OutcomeUnknown),
    ],
)
def test_the_answer_of_somebody_else_is_judged_by_status_and_text(response, kind):
    assert type(parse_error(response)) is kind


BODIES = [b"", b"<html>blocked</html>", b"maintenance", b'{"error": "rate limit"}', b"<Errors/>"]


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("status", [301, 302, 401, 403, 404, 407, 409, 410, 429, 500, 501, 503])
def test_a_refusal_that_the_service_did_not_write_says_nothing_but_that_the_way_is_broken(
    status: int, body: bytes
) -> None:
    fields = {"Retry-After": "3600", "Location": "https://login.example/"}
    error = parse_error(Response(status=status, headers=Headers.of(fields), body=body))

    assert type(error) is OutcomeUnknown
    assert error.counts_as_outage
    assert f"HTTP status {status}" in str(error)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, InvalidRequest),
        (411, InvalidRequest),
        (413, MessageTooLarge),
        (414, InvalidRequest),
        (431, InvalidRequest),
    ],
)
def test_a_proxy_that_refuses_the_form_of_a_request_is_no_outage(
    status: int, kind: type[BrokerError]
) -> None:
    assert type(parse_error(Response(status=status, body=b"<html>too large</html>"))) is kind


def test_a_proxy_that_has_no_such_page_has_settled_nothing() -> None:
    error = parse_error(Response(status=404, body=b"<html>"), settling=True)

    assert error.outcome is Outcome.UNKNOWN


@pytest.mark.parametrize("status", [404, 410])
def test_for_a_settlement_not_found_is_about_the_lock(status):
    assert type(parse_error(answer(status, "gone"), settling=True)) is LockLost


@pytest.mark.parametrize(
    ("text", "seconds"), [("7", 7.0), ("", 10.0), ("soon", 10.0), ("999999", 3600.0), ("-1", 10.0)]
)
def test_a_pause_is_bounded(text, seconds):
    assert parse_error(answer(429, "slow down", Retry_After=text)).retry_after == seconds


def test_the_tracking_of_service_bus_is_left_out():
    detail = "The lock is gone. TrackingId:1_G2, SystemTracker:q, Timestamp:2026-01-01T00:00:00"

    assert str(parse_error(answer(400, detail))) == "The lock is gone"


@given(st.integers(100, 599), st.binary(), st.booleans())
def test_no_answer_makes_reading_it_fail(status, body, settling):
    error = parse_error(Response(status=status, body=body), settling=settling)

    assert isinstance(error, BrokerError)
    if status >= 500:
        assert error.outcome is Outcome.UNKNOWN


@pytest.mark.parametrize(
    ("kind", "arrives"), [(errors.Unreachable, Unavailable), (errors.NoAnswer, OutcomeUnknown)]
)
def test_a_finding_of_a_gateway_about_its_own_connection_is_not_the_peers(kind, arrives):
    assert type(parse_error(build_error(kind("text")))) is arrives


@pytest.mark.parametrize("status", [401, 403, 429, 500, 503])
def test_an_error_of_the_namespace_or_its_rights_names_the_status(status: int) -> None:
    said = str(parse_error(answer(status, "50009: come back later")))

    assert said == f"50009: come back later (HTTP status {status})"
