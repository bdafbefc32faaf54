import re
from datetime import timedelta
from xml.etree import ElementTree

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.entity import EntityInfo, EntityPath, EntityStatus, QueueProperties
from gateway.domain.errors import (
    BrokerError,
    EntityExists,
    EntityNotFound,
    InvalidRequest,
    OutcomeUnknown,
)
from gateway.wire.http.messages import Headers, Request, Response
from gateway.wire.servicebus.atom import build_request, parse_request
from gateway.wire.servicebus.atom_answers import build_response, parse_response
from gateway.wire.servicebus.atom_operations import (
    MAX_TOP,
    DeleteEntity,
    GetEntity,
    GetNamespace,
    ListQueues,
    NamespaceInfo,
    PutQueue,
)
from gateway.wire.servicebus.errors import build_error
from gateway.wire.servicebus.management_values import FOREVER, duration_text, parse_duration
from tests.wire.servicebus.atom import (
    ORIGIN,
    SB,
    conditional,
    conditions,
    counts,
    dates,
    get,
    paths,
    spans,
    texts,
)

QUEUE = EntityPath("txt/.-_123")

links = st.none() | paths.map(str)
known_or_not = st.none() | counts
properties = st.builds(
    QueueProperties,
    lock_duration=st.timedeltas(timedelta(microseconds=1), timedelta(minutes=5)),
    max_delivery_count=st.integers(1, 2**31 - 1),
    default_time_to_live=st.none() | spans,
    dead_lettering_on_expiration=st.booleans(),
    max_size_in_megabytes=st.integers(1, 5120),
    requires_session=st.booleans(),
    requires_duplicate_detection=st.booleans(),
    duplicate_detection_window=st.timedeltas(timedelta(seconds=1), timedelta(days=7)),
    enable_batched_operations=st.booleans(),
    auto_delete_on_idle=st.none() | spans,
    forward_to=links,
    forward_dead_lettered_messages_to=links,
    user_metadata=st.none() | texts | st.just(" a\r\nb "),
    status=st.sampled_from(EntityStatus),
    max_message_size=st.none() | st.integers(1, 1024).map(lambda size: size * 1024),
)


@st.composite
def infos(draw) -> EntityInfo:
    created = draw(properties)
    return EntityInfo(
        path=draw(paths),
        properties=attrs.evolve(created, max_message_size=None),
        max_message_size=created.max_message_size,
        active=draw(known_or_not),
        dead_lettered=draw(known_or_not),
        scheduled=draw(known_or_not),
        transfer_dead_lettered=draw(known_or_not),
        size=draw(known_or_not),
        created=draw(st.none() | dates),
        updated=draw(st.none() | dates),
        accessed=draw(st.none() | dates),
        version=draw(st.integers(0, 2**62)),
    )


operations = (
    st.builds(GetEntity, entity=paths)
    | st.builds(conditional, st.builds(PutQueue, entity=paths, properties=properties), conditions)
    | st.builds(DeleteEntity, entity=paths, if_version=st.none() | st.integers(0, 2**31))
    | st.builds(
        ListQueues,
        prefix=st.text(st.characters(exclude_categories=("Cs",)), max_size=20),
        skip=st.integers(0, 10**9 - 1),
        top=st.integers(1, MAX_TOP),
        after=st.text(st.characters(exclude_categories=("Cs",)), max_size=20),
    )
    | st.just(GetNamespace())
)


def put(description: str) -> Request:
    body = (
        '<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml">'
        f'<QueueDescription xmlns="{SB}">{description}</QueueDescription></content></entry>'
    )
    return Request(method="PUT", target="/q", body=body.encode())


# Round trips


@given(operations)
def test_a_request_says_the_operation_and_nothing_else(operation):
    assert parse_request(build_request(operation)) == operation


@given(infos())
def test_a_queue_arrives_with_all_that_is_known_of_it(info):
    operation = GetEntity(entity=info.path)

    arrived = parse_response(operation, build_response(operation, info, ORIGIN))

    assert arrived == info
    assert arrived.path.name == info.path.name


@pytest.mark.slow
@given(st.lists(infos(), max_size=3))
def test_a_list_arrives_in_its_order(found):
    operation = ListQueues()

    arrived = parse_response(operation, build_response(operation, tuple(found), ORIGIN))

    assert arrived == tuple(attrs.evolve(info, version=0) for info in found)


@given(spans)
def test_a_duration_arrives(span):
    assert parse_duration(duration_text(span)) == span


def test_a_missing_queue_is_an_empty_feed():
    operation = GetEntity(entity=QUEUE)

    response = build_response(operation, None, ORIGIN)

    assert response.status == 200
    assert b"<feed" in response.body
    assert parse_response(operation, response) is None


def test_a_namespace_tells_its_name():
    operation = GetNamespace()
    info = NamespaceInfo(name="east")

    assert parse_response(operation, build_response(operation, info, ORIGIN)) == info


def test_a_deletion_is_answered():
    operation = DeleteEntity(entity=QUEUE)

    response = build_response(operation, None, ORIGIN)

    assert response.status == 200
    assert parse_response(operation, response) is None


def test_an_error_arrives():
    response = build_error(EntityExists("it is there"))

    with pytest.raises(EntityExists, match="it is there"):
        parse_response(PutQueue(entity=QUEUE, properties=QueueProperties()), response)


# Requests and answers of Service Bus's clients


@pytest.mark.parametrize(
    "body",
    [
        '<entry xmlns="http://www.w3.org/2005/Atom"><title/><updated/><author><name/></author><id/>'
        '<content type="application/xml"><QueueDescription'
        f' xmlns:i="http://www.w3.org/2001/XMLSchema-instance" xmlns="{SB}">'
        "<LockDuration>PT30S</LockDuration><RequiresSession>true</RequiresSession>"
        "</QueueDescription></content></entry>",
        "<?xml version='1.0' encoding='utf-16'?>\n"
        f'<ns0:entry xmlns:ns0="http://www.w3.org/2005/Atom" xmlns="{SB}">'
        '<ns0:content type="application/xml"><QueueDescription><LockDuration>PT30S</LockDuration>'
        "<RequiresSession>true</RequiresSession></QueueDescription></ns0:content></ns0:entry>",
    ],
)
def test_both_clients_creations_are_read(body):
    request = Request(method="PUT", target="/a%2Fq?api-version=2024-05", body=body.encode())

    assert parse_request(request) == PutQueue(
        entity=EntityPath("a/q"),
        properties=QueueProperties(lock_duration=timedelta(seconds=30), requires_session=True),
    )


@pytest.mark.parametrize(
    ("target", "operation"),
    [
        ("/$Resources/Queues", ListQueues()),
        ("/$Resources/queues/?$skip=100&$top=50", ListQueues(skip=100, top=50)),
        (
            "/$resources/QUEUES?$filter=startswith(path,%20'a''b/')%20eq%20true",
            ListQueues(prefix="a'b/"),
        ),
        ("/$Resources/queues?$top=999999", ListQueues(top=MAX_TOP)),
        ("/$namespaceinfo?api-version=2021-05", GetNamespace()),
        ("/a/q?enrich=false&api-version=2021-05", GetEntity(entity=EntityPath("a/q"))),
    ],
)
def test_both_clients_questions_are_read(target, operation):
    assert parse_request(get(target)) == operation


def test_if_match_makes_it_an_update():
    request = attrs.evolve(put(""), headers=Headers.of({"if-match": "*"}))

    assert parse_request(request).update


def test_every_known_element_stands_in_the_order_of_service_bus():
    operation = GetEntity(entity=QUEUE)

    response = build_response(operation, EntityInfo(path=QUEUE), ORIGIN)

    root = ElementTree.fromstring(response.body)
    description = root.find(f".//{{{SB}}}QueueDescription")
    assert " ".join(element.tag.partition("}")[2] for element in description) == (
        "LockDuration MaxSizeInMegabytes RequiresDuplicateDetection RequiresSession"
        " DefaultMessageTimeToLive DeadLetteringOnMessageExpiration"
        " DuplicateDetectionHistoryTimeWindow MaxDeliveryCount EnableBatchedOperations SizeInBytes"
        " MessageCount IsAnonymousAccessible AuthorizationRules Status CreatedAt UpdatedAt"
        " AccessedAt SupportOrdering CountDetails AutoDeleteOnIdle EnablePartitioning"
        " EntityAvailabilityStatus EnableExpress MaxMessageSizeInKilobytes"
    )
    values = {element.tag.partition("}")[2]: element.text for element in description}
    assert values["DefaultMessageTimeToLive"] == "P10675199DT2H48M5.4775807S"
    assert values["LockDuration"] == "PT1M"
    assert values["DuplicateDetectionHistoryTimeWindow"] == "PT10M"
    assert values["AccessedAt"] == "0001-01-01T00:00:00Z"


def test_the_name_stands_where_each_client_looks_for_it():
    operation = GetEntity(entity=QUEUE)

    text = build_response(operation, EntityInfo(path=QUEUE), ORIGIN).body.decode()

    assert '<title type="text">txt/.-_123</title>' in text
    assert f"<id>{ORIGIN}/txt/.-_123</id>" in text


@pytest.mark.parametrize(("held", "links"), [(2, 2), (1, 1), (0, 1)])
def test_a_full_page_has_a_second_link_to_the_next(held, links):
    operation = ListQueues(prefix="a", skip=4, top=2)
    found = tuple(EntityInfo(path=EntityPath(f"a{index}")) for index in range(held))

    text = build_response(operation, found, ORIGIN).body.decode()

    head = text.partition("<entry")[0]
    assert len(re.findall("<link ", head)) == links
    assert ("$skip=6&amp;$top=2&amp;$skiptoken=a1&amp;$filter=startswith" in head) == (links == 2)


def test_a_creation_is_answered_as_one():
    operation = PutQueue(entity=QUEUE, properties=QueueProperties())
    info = EntityInfo(path=QUEUE)

    assert build_response(operation, info, ORIGIN).status == 201
    assert build_response(attrs.evolve(operation, update=True), info, ORIGIN).status == 200
    assert build_response(operation, info, ORIGIN).headers.get("X-Pairgate") == "1"


def test_the_limit_of_a_namespace_is_told_where_the_queue_has_none():
    operation = GetEntity(entity=QUEUE)
    info = EntityInfo(path=QUEUE, max_message_size=256 * 1024 + 1)

    arrived = parse_response(operation, build_response(operation, info, ORIGIN))

    assert arrived.max_message_size == 256 * 1024


def test_the_limit_of_a_queue_comes_before_that_of_its_namespace():
    operation = GetEntity(entity=QUEUE)
    own = QueueProperties(max_message_size=4096)
    info = EntityInfo(path=QUEUE, properties=own, max_message_size=256 * 1024)

    arrived = parse_response(operation, build_response(operation, info, ORIGIN))

    assert arrived.max_message_size == 4096


@pytest.mark.parametrize("text", [FOREVER, "P10675199D", "P99999999D"])
def test_a_duration_longer_than_dotnet_knows_is_forever(text):
    assert parse_duration(text) is None


# Requests that are wrong


@pytest.mark.parametrize(
    ("description", "named"),
    [
        ("<LockDuration>PT6M</LockDuration>", "LockDuration: .*PT5M"),
        ("<LockDuration>PT0S</LockDuration>", "LockDuration"),
        ("<LockDuration>P</LockDuration>", "LockDuration"),
        ("<LockDuration>1 minute</LockDuration>", "LockDuration"),
        ("<DefaultMessageTimeToLive>PT0S</DefaultMessageTimeToLive>", "DefaultMessageTimeToLive"),
        (
            "<DuplicateDetectionHistoryTimeWindow>P8D</DuplicateDetectionHistoryTimeWindow>",
            "DuplicateDetectionHistoryTimeWindow: .*P7D",
        ),
        ("<MaxDeliveryCount>0</MaxDeliveryCount>", "MaxDeliveryCount: .*2147483647"),
        ("<MaxDeliveryCount>9999999999999999999999</MaxDeliveryCount>", "MaxDeliveryCount"),
        ("<RequiresSession>yes</RequiresSession>", "RequiresSession"),
        ("<Status>Gone</Status>", "Status"),
        (f"<UserMetadata>{'x' * 1025}</UserMetadata>", "UserMetadata: .*1024"),
        ("<MaxMessageSizeInKilobytes>-1</MaxMessageSizeInKilobytes>", "MaxMessageSizeInKilobytes"),
    ],
)
def test_a_property_is_refused_by_element_and_limit(description, named):
    with pytest.raises(InvalidRequest, match=named):
        parse_request(put(description))


DEEP = b"<a>" * 33 + b"</a>" * 33
WIDE = b"<a " + b" ".join(b'a%d=""' % index for index in range(65)) + b"/>"
BOMB = b'<!DOCTYPE a [<!ENTITY b "bbbb"><!ENTITY c "&b;&b;">]><a>&c;</a>'
EXTERNAL = b'<!DOCTYPE a [<!ENTITY b SYSTEM "file:///etc/passwd">]><a>&b;</a>'


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"<a",
        b"<a/>",
        b"<a>\x00</a>",
        "<a/>".encode("utf-16"),
        DEEP,
        WIDE,
        BOMB,
        EXTERNAL,
        b"<a>" + b"x" * 1024 * 1024 + b"</a>",
    ],
    ids=lambda body: repr(body[:20]),
)
def test_xml_that_is_no_entry_is_refused(body):
    with pytest.raises(InvalidRequest, match="XML"):
        parse_request(Request(method="PUT", target="/q", body=body))


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        ("/$Resources/queues?$filter=path eq 'a'", r"^\$filter: startswith\(path"),
        ("/$Resources/queues?$skip=x", r"^\$skip: a number from 0 to 999999999 expected, got 'x'$"),
        ("/$Resources/queues?$skip=-1", r"^\$skip: a number from 0 to 999999999 expected"),
        ("/a/subscriptions?$top=1000000000", r"^\$top: a number from 0 to 999999999 expected"),
        ("/", "entity name: 1 to 260 characters"),
        ("/a//b", "entity name 'a//b'"),
    ],
)
def test_a_question_is_refused_by_field(target, problem):
    with pytest.raises(InvalidRequest, match=problem):
        parse_request(get(target))


def test_other_resources_are_refused():
    with pytest.raises(EntityNotFound):
        parse_request(get("/$Resources/Relays"))


def test_a_method_that_means_nothing_is_refused():
    with pytest.raises(InvalidRequest, match="PATCH"):
        parse_request(Request(method="PATCH", target="/q"))


def test_metadata_that_xml_cannot_hold_is_refused_by_name():
    wrong = QueueProperties(user_metadata="\x00")

    with pytest.raises(InvalidRequest, match="UserMetadata"):
        build_request(PutQueue(entity=QUEUE, properties=wrong))


@pytest.mark.parametrize("body", [b"", b"<html>", b"<feed/>"])
def test_a_success_that_cannot_be_read_is_unknown(body):
    with pytest.raises(OutcomeUnknown):
        parse_response(GetEntity(entity=QUEUE), Response(status=200, body=body))


@given(st.binary(), st.sampled_from([200, 201, 404, 500]))
def test_no_answer_makes_reading_it_crash(body, status):
    with pytest.raises(BrokerError):
        parse_response(GetEntity(entity=QUEUE), Response(status=status, body=body))


def test_metadata_that_is_told_may_be_longer_than_what_may_be_asked_for():
    info = EntityInfo(path=QUEUE, properties=QueueProperties(user_metadata="x" * 9000))
    told = build_response(GetEntity(entity=QUEUE), info, origin="http://localhost")

    found = parse_response(GetEntity(entity=QUEUE), told)

    assert found.properties.user_metadata == "x" * 9000
