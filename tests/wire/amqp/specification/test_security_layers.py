"""AMQP 1.0, part 5: 5.1 (security layers) and 5.3 (SASL), both ends of it."""

import attrs
import pytest

from gateway.wire.amqp.engine import Engine
from gateway.wire.amqp.events import ConnectionClosed, ConnectionOpened
from gateway.wire.amqp.options import EngineOptions
from gateway.wire.amqp.sasl import MECHANISMS, OK, REFUSED, Credentials, SaslClient, SaslServer
from tests.wire.amqp.pair_of_engines import take_all
from tests.wire.amqp.performative_fields import (
    AMQP_HEADER,
    EMPTY,
    MIN_MAX_FRAME_SIZE,
    SASL_HEADER,
    Frame,
    body,
    frame,
    parse,
    raw_frame,
)

PLAIN = Credentials(mechanism="PLAIN", user="user", password="password")
ANONYMOUS = Credentials(mechanism="ANONYMOUS")
OFFER = frame("sasl-mechanisms", sasl_server_mechanisms=("ANONYMOUS", "PLAIN"))
INIT = frame("sasl-init", mechanism="PLAIN", initial_response=b"\0user\0password")
AUTHENTICATED = frame("sasl-outcome", code=0)


@attrs.define(eq=False)
class Layer:
    """An engine whose peer speaks SASL, and then AMQP, in bytes."""

    engine: Engine
    closed: list[ConnectionClosed] = attrs.field(factory=list)
    opened: list[ConnectionOpened] = attrs.field(factory=list)

    def say(self, *pieces: bytes) -> bytes:
        self.engine.feed(b"".join(pieces))
        for event in self.engine.events():
            match event:
                case ConnectionClosed():
                    self.closed.append(event)
                case ConnectionOpened():
                    self.opened.append(event)
        return take_all(self.engine)

    def hears(self, *pieces: bytes) -> list[Frame]:
        """The engine's answer: whole frames of SASL, without the headers around them."""
        answer = self.say(*pieces).removeprefix(SASL_HEADER).removesuffix(AMQP_HEADER)
        frames, rest = parse(answer)
        assert rest == b""
        return frames


def serving(accepted: Credentials = PLAIN) -> Layer:
    sasl = SaslServer(lambda credentials: OK if credentials == accepted else REFUSED)
    return Layer(Engine(EngineOptions(), sasl=sasl))


def asking(credentials: Credentials = PLAIN, hostname: str = "") -> Layer:
    layer = Layer(Engine(EngineOptions(), sasl=SaslClient(credentials, hostname)))
    layer.engine.open()
    return layer


# --------------------------------------------------------------------------- the server


def test_a_server_answers_the_header_with_its_own_and_its_mechanisms() -> None:
    """
    5.3: each peer MUST start by sending a protocol header; 5.3.2: the server must announce its
    mechanisms; 5.3.3.1: the list isn't empty.
    """
    layer = serving()
    answer = layer.say(SASL_HEADER)
    (mechanisms,), rest = parse(answer[8:])

    assert (answer[:8], rest) == (SASL_HEADER, b"")
    assert mechanisms.kind == "sasl-mechanisms"
    assert mechanisms.sasl_server_mechanisms == MECHANISMS


def test_a_client_that_is_let_in_speaks_amqp_next() -> None:
    """5.3.3.5: upon successful completion the peers must exchange protocol headers."""
    layer = serving()
    answer = layer.say(SASL_HEADER, INIT)
    answer += layer.say(AMQP_HEADER, frame("open", container_id="raw"))
    layer.engine.open()
    answer += take_all(layer.engine)
    before, after = answer.split(AMQP_HEADER)
    _, outcome = parse(before.removeprefix(SASL_HEADER))[0]

    assert (outcome.kind, outcome.code) == ("sasl-outcome", 0)
    assert [each.kind for each in parse(after)[0]] == ["open"]
    assert [(each.mechanism, each.user) for each in layer.opened] == [("PLAIN", "user")]


def test_all_of_it_may_come_at_once_or_byte_by_byte() -> None:
    """5.3.2: SASL is negotiated using framing, of a stream."""
    whole = SASL_HEADER + INIT + AMQP_HEADER + frame("open", container_id="raw")
    layers = [serving(), serving()]
    layers[0].say(whole)
    for byte in whole:
        layers[1].say(bytes((byte,)))

    assert layers[0].opened == layers[1].opened != []


def test_bytes_that_follow_sasl_start_with_a_header() -> None:
    """5.3.3.5: as above; 2.2: without the header nothing else is understood."""
    layer = serving()
    layer.say(SASL_HEADER, INIT, frame("open", container_id="raw"))

    assert layer.opened == []
    assert len(layer.closed) == 1
    assert layer.engine.finished


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "plain", "GSSAPI"])
def test_a_mechanism_that_is_not_offered_ends_the_connection(mechanism: str) -> None:
    """5.3.3.2: if it isn't supported, the peer MUST close with authentication-failure."""
    layer = serving()
    *_, outcome = layer.hears(SASL_HEADER, frame("sasl-init", mechanism=mechanism))

    assert (outcome.kind, outcome.code) == ("sasl-outcome", 1)
    assert [each.error.condition for each in layer.closed] == ["amqp:unauthorized-access"]
    assert layer.engine.finished


@pytest.mark.parametrize(
    "proof", [None, b"", b"\0user\0wrong", b"user", b"\0\xff\0\xff", b"\0\0\0"]
)
def test_a_client_that_is_not_let_in_is_told_and_nothing_else(proof: bytes | None) -> None:
    """5.3.3.6: code 1, a problem with the credentials; 5.3.3.5: no additional data then."""
    layer = serving()
    init = frame("sasl-init", mechanism="PLAIN", initial_response=proof)
    *_, outcome = layer.hears(SASL_HEADER, init)
    late = layer.say(AMQP_HEADER, frame("open", container_id="raw"))

    assert (outcome.code, outcome.additional_data) == (1, None)
    assert late == b""
    assert layer.opened == []
    assert layer.engine.finished


def test_the_ignored_parts_of_the_header_of_a_frame_are_ignored() -> None:
    """5.3.1: bytes 6 and 7 of the header are ignored; the extended header is ignored."""
    content = body("sasl-init", mechanism="PLAIN", initial_response=b"\0user\0password")
    odd = raw_frame(content, type_code=1, channel=0xBEEF, extended=b"\xff" * 8)
    *_, outcome = serving().hears(SASL_HEADER, odd)

    assert (outcome.kind, outcome.code) == ("sasl-outcome", 0)


@pytest.mark.parametrize(
    "broken",
    [
        raw_frame(b"", type_code=1),  # an empty frame
        raw_frame(body("sasl-init", mechanism="PLAIN") * 2, type_code=1),  # two values
        raw_frame(body("sasl-init", mechanism="PLAIN") + b"\0", type_code=1),
        raw_frame(body("sasl-init", mechanism="PLAIN"), type_code=0),  # a frame of AMQP
        raw_frame(b"\x40", type_code=1),
        raw_frame(b"\x00\x53\x41\x45", type_code=1),  # without its mandatory mechanism
        frame("open", container_id="raw"),
        EMPTY,
        b"\0\0\0\x07\x02\x01\0\0",
        b"\0\0\0\x10\x01\x01\0\0" + bytes(8),
        b"\xff\xff\xff\xff\x02\x01\0\0",
        frame("sasl-outcome", code=0),
        frame("sasl-response", response=b""),
        OFFER,
    ],
)
def test_an_invalid_init_ends_the_connection(broken: bytes) -> None:
    """
    5.3.1: a frame of SASL has the type 0x01 and exactly one value, and an empty frame is an
    irrecoverable error; 5.3.2: the partner's first frame is sasl-init.
    """
    layer = serving()
    layer.say(SASL_HEADER)
    answer = layer.say(broken)

    assert [frame.code for frame in parse(answer)[0]] in ([], [1])
    assert len(layer.closed) == 1
    assert layer.engine.finished


def test_an_init_of_the_largest_size_is_taken() -> None:
    """5.3.1: the maximum size of a SASL frame is MIN-MAX-FRAME-SIZE. (Tokens are longer.)"""
    password = "p" * 460
    proof = f"\0user\0{password}".encode()
    init = frame("sasl-init", mechanism="PLAIN", initial_response=proof, hostname="h" * 12)
    layer = serving(Credentials(mechanism="PLAIN", user="user", password=password))
    *_, outcome = layer.hears(SASL_HEADER, init)

    assert len(init) == MIN_MAX_FRAME_SIZE
    assert outcome.code == 0


def test_no_frame_of_the_server_is_larger_than_any_peer_takes() -> None:
    """5.3.1: there is no mechanism within SASL to negotiate a different size."""
    frames = serving().hears(SASL_HEADER, INIT)

    assert len(frames) == 2
    assert max(each.size for each in frames) <= MIN_MAX_FRAME_SIZE


# --------------------------------------------------------------------------- the client


def test_a_client_chooses_of_what_is_offered_and_says_whom_it_wants() -> None:
    """5.3.2: the partner must choose one of the supported mechanisms and initiate an exchange."""
    layer = asking(hostname="host")
    begun = take_all(layer.engine)
    (init,) = layer.hears(SASL_HEADER, OFFER)

    assert begun == SASL_HEADER
    assert (init.kind, init.mechanism, init.hostname) == ("sasl-init", "PLAIN", "host")
    assert init.initial_response == b"\0user\0password"
    assert init.size <= MIN_MAX_FRAME_SIZE


def test_a_client_says_nothing_of_amqp_before_the_outcome() -> None:
    """5.3.3.5: only then the peers must exchange protocol headers."""
    layer = asking()
    before = layer.say(SASL_HEADER, OFFER)
    after = layer.say(AUTHENTICATED)

    assert AMQP_HEADER not in before
    assert after[:8] == AMQP_HEADER
    assert [each.kind for each in parse(after[8:])[0]] == ["open"]


@pytest.mark.parametrize(
    "offer", [None, (), "EXTERNAL", ("EXTERNAL",), ("plain",), ("EXTERNAL", "SCRAM-SHA-1")]
)
def test_a_client_does_not_choose_what_is_not_offered(offer: object) -> None:
    """5.3.3.1: it is invalid for the list to be null or empty; 5.3.2: one of the supported."""
    content = body("sasl-mechanisms", sasl_server_mechanisms=offer)
    layer = asking()
    take_all(layer.engine)
    answer = layer.say(SASL_HEADER, raw_frame(content, type_code=1))

    assert answer == b""
    assert len(layer.closed) == 1
    assert layer.engine.finished


@pytest.mark.parametrize("offer", ["PLAIN", ("PLAIN",)])
def test_one_mechanism_may_be_offered_without_an_array(offer: object) -> None:
    """1.4: a single element of the type of the field is always permitted."""
    offered = frame("sasl-mechanisms", sasl_server_mechanisms=offer)
    layer = asking()
    take_all(layer.engine)

    assert [each.kind for each in layer.hears(SASL_HEADER, offered)] == ["sasl-init"]


@pytest.mark.parametrize(
    ("code", "condition"),
    [
        (1, "amqp:unauthorized-access"),
        (2, "amqp:internal-error"),
        (3, "amqp:internal-error"),
        (4, "amqp:internal-error"),
    ],
)
def test_a_client_that_is_not_let_in_goes_no_further(code: int, condition: str) -> None:
    """5.3.3.6: 1 is about the credentials, 2 to 4 are errors of the system."""
    layer = asking()
    take_all(layer.engine)
    layer.say(SASL_HEADER, OFFER)
    answer = layer.say(frame("sasl-outcome", code=code), AMQP_HEADER)

    assert answer == b""
    assert [each.error.condition for each in layer.closed] == [condition]
    assert layer.engine.finished


def test_additional_data_of_a_good_outcome_is_passed_over() -> None:
    """5.3.3.5: it carries additional data on successful authentication."""
    layer = asking()
    take_all(layer.engine)
    layer.say(SASL_HEADER, OFFER)
    answer = layer.say(frame("sasl-outcome", code=0, additional_data=b"data"))

    assert answer[:8] == AMQP_HEADER


@pytest.mark.parametrize(
    "broken",
    [
        raw_frame(b"", type_code=1),
        raw_frame(b"\x00\x53\x44\x45", type_code=1),  # an outcome without its mandatory code
        frame("sasl-challenge", challenge=b"what?"),
        frame("sasl-init", mechanism="PLAIN"),
        frame("open", container_id="raw"),
        OFFER,
    ],
)
def test_an_invalid_outcome_ends_the_connection(broken: bytes) -> None:
    """5.3.1 and 5.3.3.3: none of the mechanisms here knows a challenge."""
    layer = asking()
    take_all(layer.engine)
    layer.say(SASL_HEADER, OFFER)
    answer = layer.say(broken)

    assert answer == b""
    assert len(layer.closed) == 1
    assert layer.engine.finished


def test_the_end_of_the_stream_within_the_layer_ends_the_connection() -> None:
    """5.1: when a security layer terminates, the connection MUST be closed."""
    for layer in (serving(), asking()):
        take_all(layer.engine)
        layer.say(SASL_HEADER)
        layer.engine.feed_eof()

        assert [type(each) for each in layer.engine.events()] == [ConnectionClosed]
        assert layer.engine.finished
