"""Topics, subscriptions and rules in Atom."""

import re
from datetime import UTC, datetime, timedelta
from xml.etree import ElementTree

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.entity import (
    AuthorizationRule,
    EntityInfo,
    EntityPath,
    EntityStatus,
    QueueProperties,
)
from gateway.domain.envelope_fields import TIMESPAN
from gateway.domain.errors import InvalidRequest, PreconditionFailed
from gateway.domain.message import Described, Kind, Typed
from gateway.domain.topics.filters import (
    CorrelationFilter,
    FalseFilter,
    Rule,
    SqlAction,
    SqlFilter,
    TrueFilter,
)
from gateway.domain.topics.topology import (
    SubscriptionInfo,
    SubscriptionProperties,
    TopicInfo,
    TopicProperties,
)
from gateway.wire.http.messages import Headers, Request
from gateway.wire.servicebus.atom import build_request, parse_request
from gateway.wire.servicebus.atom_answers import build_response, parse_response
from gateway.wire.servicebus.atom_operations import (
    MAX_TOP,
    STANDARD,
    DeleteEntity,
    DeleteRule,
    DeleteSubscription,
    GetEntity,
    GetNamespace,
    GetRule,
    GetSubscription,
    ListRules,
    ListSubscriptions,
    ListTopics,
    NamespaceInfo,
    PutQueue,
    PutRule,
    PutSubscription,
    PutTopic,
    entity_of,
)
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

TOPIC = EntityPath("eu/orders")
HOST = "localhost:23443"
XSD = "http://www.w3.org/2001/XMLSchema"

names = st.from_regex(r"[A-Za-z0-9._~$-]{1,50}", fullmatch=True)
days = st.timedeltas(timedelta(seconds=1), timedelta(days=7))
ticks = st.integers(-(10**16), 10**16).map(lambda micros: Described(TIMESPAN, micros * 10))
values = st.one_of(
    texts | st.just(" a\r\nb "),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(-(2**31), 2**31 - 1).map(lambda number: Typed(Kind.INT, number)),
    st.floats(allow_nan=False),
    dates | st.datetimes(datetime(2000, 1, 1), datetime(2999, 1, 1)),
    ticks,
)
parameters = st.dictionaries(texts, values, max_size=3)
expressions = texts.filter(str.strip)
filters = st.one_of(
    st.just(TrueFilter()),
    st.just(FalseFilter()),
    st.builds(SqlFilter, expression=expressions, parameters=parameters),
    st.builds(
        CorrelationFilter,
        **{
            field.name: st.none() | texts
            for field in attrs.fields(CorrelationFilter)
            if field.name != "properties"
        },
        properties=parameters,
    ),
)
actions = st.builds(SqlAction, expression=expressions, parameters=parameters)
rules = st.builds(
    Rule,
    name=names,
    filter=filters,
    action=st.none() | actions,
    created=st.none() | dates,
)
topics = st.builds(
    TopicProperties,
    default_time_to_live=st.none() | spans,
    max_size_in_megabytes=st.integers(1, 5120),
    requires_duplicate_detection=st.booleans(),
    duplicate_detection_window=days,
    enable_batched_operations=st.booleans(),
    support_ordering=st.booleans(),
    auto_delete_on_idle=st.none() | spans,
    user_metadata=st.none() | texts,
    status=st.sampled_from(EntityStatus),
    max_message_size=st.none() | st.integers(1, 1024).map(lambda size: size * 1024),
)
targets = st.none() | paths.map(str)
subscriptions = st.builds(
    SubscriptionProperties,
    lock_duration=st.timedeltas(timedelta(microseconds=1), timedelta(minutes=5)),
    requires_session=st.booleans(),
    default_time_to_live=st.none() | spans,
    dead_lettering_on_expiration=st.booleans(),
    dead_lettering_on_filter_error=st.booleans(),
    max_delivery_count=st.integers(1, 2**31 - 1),
    enable_batched_operations=st.booleans(),
    status=st.sampled_from(EntityStatus),
    forward_to=targets,
    forward_dead_lettered_messages_to=targets,
    user_metadata=st.none() | texts,
    auto_delete_on_idle=st.none() | spans,
)
told = {
    "created": st.none() | dates,
    "updated": st.none() | dates,
    "accessed": st.none() | dates,
    "version": st.integers(0, 2**62),
}
topic_infos = st.builds(
    TopicInfo,
    path=paths,
    properties=topics,
    size=counts,
    subscriptions=counts,
    scheduled=counts,
    transfer_dead_lettered=counts,
    **told,
)
subscription_infos = st.builds(
    SubscriptionInfo,
    topic=st.just(TOPIC),
    name=names,
    properties=subscriptions,
    active=counts,
    dead_lettered=counts,
    transfer_dead_lettered=counts,
    **told,
)
page = {"skip": st.integers(0, 10**9 - 1), "top": st.integers(1, MAX_TOP)}
puts_of_topics = st.builds(PutTopic, entity=paths, properties=topics)
puts_of_subscriptions = st.builds(
    PutSubscription, topic=paths, name=names, properties=subscriptions, rule=st.none() | rules
)
operations = st.one_of(
    st.builds(conditional, puts_of_topics, conditions),
    st.builds(conditional, puts_of_subscriptions, conditions),
    st.builds(GetSubscription, topic=paths, name=names),
    st.builds(DeleteSubscription, topic=paths, name=names),
    st.builds(PutRule, topic=paths, subscription=names, rule=rules, update=st.booleans()),
    st.builds(GetRule, topic=paths, subscription=names, name=names),
    st.builds(DeleteRule, topic=paths, subscription=names, name=names),
    st.builds(ListTopics, prefix=texts, **page),
    st.builds(ListSubscriptions, topic=paths, **page),
    st.builds(ListRules, topic=paths, subscription=names, **page),
)


def put(target: str, description: str, kind: str, **fields: str) -> Request:
    body = (
        '<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml">'
        f'<{kind} xmlns="{SB}" xmlns:i="http://www.w3.org/2001/XMLSchema-instance">{description}'
        f"</{kind}></content></entry>"
    )
    headers = Headers.of({name.replace("_", "-"): value for name, value in fields.items()})
    return Request(method="PUT", target=target, headers=headers, body=body.encode())


def put_rule(description: str, name: str = "r", **fields: str) -> Request:
    target = f"/eu/orders/subscriptions/s/rules/{name}"
    return put(target, description, "RuleDescription", **fields)


def elements(operation, info, kind: str) -> dict[str, str | None]:
    root = ElementTree.fromstring(build_response(operation, info, ORIGIN).body)
    description = root.find(f".//{{{SB}}}{kind}")
    assert description is not None
    return {element.tag.partition("}")[2]: element.text for element in description}


def kinds_of(rule: Rule) -> list[type]:
    found = (getattr(rule.filter, "parameters", {}), getattr(rule.filter, "properties", {}))
    action = {} if rule.action is None else rule.action.parameters
    return [type(value) for part in (*found, action) for value in part.values()]


# Round trips


@given(operations)
def test_a_request_says_the_operation_and_nothing_else(operation):
    assert parse_request(build_request(operation)) == operation


@given(topic_infos)
def test_a_topic_arrives_with_all_that_is_known_of_it(info):
    operation = GetEntity(entity=info.path)

    arrived = parse_response(operation, build_response(operation, info, ORIGIN))

    # The answer doesn't tell the topic's own limit from the namespace's.
    assert arrived == attrs.evolve(
        info,
        properties=attrs.evolve(info.properties, max_message_size=None),
        max_message_size=info.properties.max_message_size,
    )


@given(subscription_infos)
def test_a_subscription_arrives_with_all_that_is_known_of_it(info):
    operation = GetSubscription(topic=TOPIC, name=info.name)

    arrived = parse_response(operation, build_response(operation, info, ORIGIN))

    assert arrived == info


@given(rules)
def test_a_rule_arrives_with_the_types_of_its_values(rule):
    operation = GetRule(topic=TOPIC, subscription="s", name=rule.name)

    arrived = parse_response(operation, build_response(operation, rule, ORIGIN))

    assert arrived == rule
    assert kinds_of(arrived) == kinds_of(rule)  # 1 equals True and 1.0


def test_pages_arrive_in_their_order():
    topic = TopicInfo(path=TOPIC)
    subscription = SubscriptionInfo(topic=TOPIC, name="s")
    pages = [
        (ListTopics(), (topic, attrs.evolve(topic, path=EntityPath("a")))),
        (ListSubscriptions(topic=TOPIC), (subscription, attrs.evolve(subscription, name="a"))),
        (ListRules(topic=TOPIC, subscription="s"), (Rule(name="b"), Rule(name="a"))),
    ]

    for operation, answer in pages:
        assert parse_response(operation, build_response(operation, answer, ORIGIN)) == answer


# Answers that clients read


def test_the_elements_of_a_topic_stand_in_the_order_of_service_bus():
    assert " ".join(
        elements(GetEntity(entity=TOPIC), TopicInfo(path=TOPIC), "TopicDescription")
    ) == (
        "DefaultMessageTimeToLive MaxSizeInMegabytes RequiresDuplicateDetection"
        " DuplicateDetectionHistoryTimeWindow EnableBatchedOperations SizeInBytes"
        " FilteringMessagesBeforePublishing IsAnonymousAccessible AuthorizationRules Status"
        " CreatedAt UpdatedAt AccessedAt SupportOrdering CountDetails SubscriptionCount"
        " AutoDeleteOnIdle EnablePartitioning EntityAvailabilityStatus"
        " EnableSubscriptionPartitioning EnableExpress MaxMessageSizeInKilobytes"
    )


def test_the_elements_of_a_subscription_stand_in_the_order_of_service_bus():
    info = SubscriptionInfo(topic=TOPIC, name="s", active=2, dead_lettered=3)

    found = elements(GetSubscription(topic=TOPIC, name="s"), info, "SubscriptionDescription")

    assert " ".join(found) == (
        "LockDuration RequiresSession DefaultMessageTimeToLive DeadLetteringOnMessageExpiration"
        " DeadLetteringOnFilterEvaluationExceptions MessageCount MaxDeliveryCount"
        " EnableBatchedOperations Status CreatedAt UpdatedAt AccessedAt CountDetails"
        " AutoDeleteOnIdle EntityAvailabilityStatus IsClientAffine"
    )
    assert found["MessageCount"] == "5"


def test_a_subscription_whose_counts_nobody_knows_says_so_to_a_pairgate():
    operation = GetSubscription(topic=TOPIC, name="s")
    unknown = SubscriptionInfo(
        topic=TOPIC, name="s", active=None, dead_lettered=None, transfer_dead_lettered=None
    )

    found = parse_response(operation, build_response(operation, unknown, ORIGIN))

    assert (found.active, found.dead_lettered, found.transfer_dead_lettered) == (None, None, None)


# The files named below are answers that the service gave: azure-sdk-for-net, sdk/servicebus,
# tests/SessionRecords/ServiceBusManagementClientLiveTests. The order of the elements above is that
# of GetTopicRuntimeInfoAsync.json, and of queues that of azure-sdk-for-python,
# test_mgmt_queues_async, get_runtime_properties_basic.


def inside_of(operation, info) -> list[str]:
    """The elements of an entry, in their order."""
    root = ElementTree.fromstring(build_response(operation, info, ORIGIN).body)
    return [element.tag.partition("}")[2] for element in root]


def test_only_entities_of_the_namespace_have_an_author() -> None:
    """BasicRuleCrudOperationsAsync.json: the answers to a topic, a subscription and rules."""
    rest = ["link", "content"]
    dated = ["id", "title", "published", "updated"]
    subscription = GetSubscription(topic=TOPIC, name="s")
    rule = GetRule(topic=TOPIC, subscription="s", name="r")

    topic = inside_of(GetEntity(entity=TOPIC), TopicInfo(path=TOPIC))
    below = inside_of(subscription, SubscriptionInfo(topic=TOPIC, name="s"))
    last = inside_of(rule, Rule(name="r"))
    namespace = inside_of(GetNamespace(), NamespaceInfo(name="east"))

    assert topic == [*dated, "author", *rest]
    assert below == last == [*dated, *rest]
    # GetNamespacePropertiesAsync.json
    assert namespace == ["id", "title", "updated", "author", *rest]


def test_a_duration_in_a_rule_has_the_namespace_of_the_services_serializer() -> None:
    """BasicRuleCrudOperationsAsync.json: rule2, whose @timeSpanParam is one day."""
    one_day = Described(TIMESPAN, 864_000_000_000)  # units of 100 ns
    parameters = {"@timeSpanParam": one_day, "@stringParam": "string"}
    rule = Rule(name="rule2", filter=SqlFilter(expression="a = b", parameters=parameters))

    asked = GetRule(topic=TOPIC, subscription="s", name="rule2")
    text = build_response(asked, rule, ORIGIN).body.decode()

    assert (
        '<Key>@timeSpanParam</Key><Value i:type="d6p1:duration"'
        ' xmlns:d6p1="http://schemas.microsoft.com/2003/10/Serialization/">P1D</Value>'
    ) in text
    assert (
        '<Key>@stringParam</Key><Value i:type="d6p1:string"'
        ' xmlns:d6p1="http://www.w3.org/2001/XMLSchema">string</Value>'
    ) in text


def test_a_namespace_has_every_element():
    found = elements(GetNamespace(), NamespaceInfo(name="east"), "NamespaceInfo")

    assert " ".join(found) == (
        "Alias CreatedTime MessagingSKU MessagingUnits ModifiedTime Name NamespaceType"
    )
    assert found["MessagingSKU"] == "Premium"
    standard = elements(GetNamespace(), NamespaceInfo(name="e", tier=STANDARD), "NamespaceInfo")
    assert (standard["MessagingSKU"], "MessagingUnits" in standard) == ("Standard", False)


def test_names_stand_where_each_client_looks_for_them():
    subscription = GetSubscription(topic=TOPIC, name="s")
    rule = GetRule(topic=TOPIC, subscription="s", name="$Default")

    told = [
        build_response(subscription, SubscriptionInfo(topic=TOPIC, name="s"), ORIGIN),
        build_response(rule, Rule(name="$Default"), ORIGIN),
    ]

    texts_told = [response.body.decode() for response in told]
    assert f"<id>{ORIGIN}/eu/orders/subscriptions/s</id>" in texts_told[0]
    assert '<title type="text">s</title>' in texts_told[0]
    assert f"<id>{ORIGIN}/eu/orders/subscriptions/s/rules/$Default</id>" in texts_told[1]
    assert '<title type="text">$Default</title>' in texts_told[1]


@pytest.mark.parametrize("asked", ["/Eu/Orders/Subscriptions/S", "/eu/orders/subscriptions/s"])
def test_an_entry_has_the_path_that_its_client_asked_for(asked: str) -> None:
    subscription = GetSubscription(topic=TOPIC, name="s")
    found = SubscriptionInfo(topic=TOPIC, name="s")

    text = build_response(subscription, found, ORIGIN, asked).body.decode()

    assert re.findall("<id>(.+?)</id>", text) == [f"{ORIGIN}{asked}"]


@pytest.mark.parametrize("end", ["", "/"])
def test_a_list_and_its_entries_have_the_path_that_their_client_asked_for(end: str) -> None:
    subscriptions = build_response(
        ListSubscriptions(topic=TOPIC, top=1),
        (SubscriptionInfo(topic=TOPIC, name="s"),),
        ORIGIN,
        f"/eu/orders/Subscriptions{end}",
    )
    rules = build_response(
        ListRules(topic=TOPIC, subscription="s", top=1),
        (Rule(name="$Default"),),
        ORIGIN,
        f"/eu/orders/Subscriptions/s/Rules{end}",
    )

    for answer, place in ((subscriptions, "Subscriptions"), (rules, "Subscriptions/s/Rules")):
        text, here = answer.body.decode(), f"{ORIGIN}/eu/orders/{place}"
        feed, entry = re.findall("<id>(.+?)</id>", text)
        assert feed.partition("?")[0] == here
        assert entry == f"{here}/{'s' if place == 'Subscriptions' else '$Default'}"
        assert f'<link rel="next" href="{here}?' in text


def test_a_full_page_has_a_second_link_to_the_next():
    operation = ListRules(topic=TOPIC, subscription="s", skip=1, top=1)

    text = build_response(operation, (Rule(name="r"),), ORIGIN).body.decode()

    head = text.partition("<entry")[0]
    assert re.findall(r'<link rel="next" href="([^"]*)"', head) == [
        f"{ORIGIN}/eu/orders/subscriptions/s/rules?api-version=2021-05&amp;$skip=2&amp;$top=1"
        "&amp;$skiptoken=r"
    ]


def test_a_value_has_the_prefix_that_clients_cut_off():
    rule = Rule(name="r", filter=SqlFilter(expression="a = @p", parameters={"@p": 5}))

    text = build_response(
        GetRule(topic=TOPIC, subscription="s", name="r"), rule, ORIGIN
    ).body.decode()

    assert f'<Value i:type="d6p1:long" xmlns:d6p1="{XSD}">5</Value>' in text


def test_where_messages_are_forwarded_is_told_as_a_uri():
    operation = GetEntity(entity=EntityPath("q"))
    info = EntityInfo(path=EntityPath("q"), properties=QueueProperties(forward_to="eu/orders"))

    found = elements(operation, info, "QueueDescription")

    assert found["ForwardTo"] == f"sb://{HOST}/eu/orders"
    arrived = parse_response(operation, build_response(operation, info, ORIGIN))
    assert arrived.properties.forward_to == "eu/orders"


def test_each_version_is_an_etag():
    operation = GetEntity(entity=TOPIC)

    response = build_response(operation, TopicInfo(path=TOPIC, version=7), ORIGIN)

    assert response.headers.get("ETag") == '"7"'


# Requests that clients write


@pytest.mark.parametrize(
    ("target", "operation"),
    [
        ("/$Resources/Topics", ListTopics()),
        ("/eu/orders/subscriptions/", ListSubscriptions(topic=TOPIC)),
        (
            "/eu%2Forders/Subscriptions?$skip=1&$top=2",
            ListSubscriptions(topic=TOPIC, skip=1, top=2),
        ),
        ("/eu/orders/SUBSCRIPTIONS/s", GetSubscription(topic=TOPIC, name="s")),
        ("/eu/orders/subscriptions/s/Rules/", ListRules(topic=TOPIC, subscription="s")),
        (
            "/eu/orders/subscriptions/s/rules/$Default?enrich=false",
            GetRule(topic=TOPIC, subscription="s", name="$Default"),
        ),
    ],
)
def test_both_clients_questions_are_read(target, operation):
    assert parse_request(get(target)) == operation


def test_the_body_says_whether_it_is_a_topic():
    topic = parse_request(put("/t", "", "TopicDescription"))
    queue = parse_request(put("/t", "", "QueueDescription"))

    assert topic == PutTopic(entity=EntityPath("t"), properties=TopicProperties())
    assert queue == PutQueue(entity=EntityPath("t"), properties=QueueProperties())


def test_a_legacy_clients_rule_is_read():
    correlation = put_rule(
        '<Filter i:type="CorrelationFilter"><CorrelationId>c</CorrelationId></Filter>'
    )
    sql = put_rule(
        '<Filter i:type="SqlFilter"><SqlExpression>a &gt; 1</SqlExpression>'
        "<CompatibilityLevel>20</CompatibilityLevel></Filter>"
        '<Action i:type="SqlRuleAction"><SqlExpression>SET b = 1</SqlExpression>'
        "<CompatibilityLevel>20</CompatibilityLevel></Action>"
    )

    found = [parse_request(request) for request in (correlation, sql)]

    assert [operation.rule for operation in found] == [
        Rule(name="r", filter=CorrelationFilter(correlation_id="c")),
        Rule(
            name="r",
            filter=SqlFilter(expression="a > 1"),
            action=SqlAction(expression="SET b = 1"),
        ),
    ]


def test_a_rule_without_a_filter_takes_every_message():
    operation = parse_request(put_rule(""))

    assert operation.rule == Rule(name="r")


@pytest.mark.parametrize("name", ["ForwardTo", "ForwardDeadLetteredMessagesTo"])
@pytest.mark.parametrize(
    "text", [f"sb://{HOST}/eu/orders", "https://LOCALHOST/eu/orders", "eu/orders"]
)
def test_an_entity_to_forward_to_is_named_as_clients_do(name, text):
    request = put("/q", f"<{name}>{text}</{name}>", "QueueDescription", Host=HOST)

    properties = parse_request(request).properties

    assert "eu/orders" in {
        properties.forward_to,
        properties.forward_dead_lettered_messages_to,
    }


def test_forwarding_to_another_namespace_is_refused():
    request = put("/q", "<ForwardTo>sb://elsewhere/q</ForwardTo>", "QueueDescription", Host=HOST)

    with pytest.raises(InvalidRequest, match="ForwardTo: an entity of this namespace"):
        parse_request(request)


@pytest.mark.parametrize(
    ("tag", "version"), [("*", None), ('"12"', 12), ("12", 12), ('W/"12"', 12)]
)
def test_an_etag_is_the_version_that_must_still_be_there(tag, version):
    operation = parse_request(put("/t", "", "TopicDescription", If_Match=tag))

    assert (operation.update, operation.if_version) == (True, version)


def test_an_etag_that_we_never_gave_is_stale():
    with pytest.raises(PreconditionFailed, match="If-Match"):
        parse_request(put("/t", "", "TopicDescription", If_Match='"abc"'))


def test_a_rule_has_no_version():
    with pytest.raises(PreconditionFailed, match="If-Match"):
        parse_request(put_rule("", If_Match='"1"'))


RULE_OF_ACCESS = (
    "<AuthorizationRule><ClaimType>SharedAccessKey</ClaimType><ClaimValue>None</ClaimValue>"
    "<Rights><AccessRights>Manage</AccessRights><AccessRights>Send</AccessRights></Rights>"
    "<CreatedTime>2026-01-02T03:04:05Z</CreatedTime><KeyName>clerk</KeyName>"
    "<PrimaryKey>first&amp;</PrimaryKey><SecondaryKey>other-key</SecondaryKey></AuthorizationRule>"
)


@pytest.mark.parametrize("kind", ["TopicDescription", "QueueDescription"])
def test_the_rules_of_access_of_an_entity_are_shown_as_they_were_set(kind):
    rules = f"<AuthorizationRules>{RULE_OF_ACCESS}</AuthorizationRules>"
    properties = parse_request(put("/t", rules, kind)).properties
    info = TopicInfo if kind == "TopicDescription" else EntityInfo

    answer = build_response(GetEntity(entity=TOPIC), info(path=TOPIC, properties=properties), "")
    again = parse_response(GetEntity(entity=TOPIC), answer)

    assert properties.authorization_rules == (
        AuthorizationRule(
            key_name="clerk",
            rights=("Manage", "Send"),
            claim_type="SharedAccessKey",
            claim_value="None",
            primary_key="first&",
            secondary_key="other-key",
            created="2026-01-02T03:04:05Z",
        ),
    )
    assert again.properties.authorization_rules == properties.authorization_rules
    assert "first" not in repr(properties)
    assert "other-key" not in repr(properties)
    assert 'type="SharedAccessAuthorizationRule"' in answer.body.decode()


@pytest.mark.parametrize(
    ("rules", "named"),
    [
        ("<AuthorizationRule/>", "KeyName"),
        ("<AuthorizationRule><KeyName>k</KeyName></AuthorizationRule>", "AccessRights: Manage"),
        (RULE_OF_ACCESS.replace("Manage", "Own"), "AccessRights: Manage, Listen, Send"),
        (RULE_OF_ACCESS.replace("clerk", "c" * 257), "KeyName: up to 256"),
        (RULE_OF_ACCESS * 13, "up to 12 rules"),
    ],
)
def test_a_rule_of_access_that_makes_no_sense_is_refused(rules, named):
    description = f"<AuthorizationRules>{rules}</AuthorizationRules>"
    with pytest.raises(InvalidRequest, match=named):
        parse_request(put("/t", description, "TopicDescription"))


@pytest.mark.parametrize("kind", ["TopicDescription", "QueueDescription"])
def test_a_client_of_an_old_version_creates_nothing_with_a_message_size(kind):
    size = "<MaxMessageSizeInKilobytes>1024</MaxMessageSizeInKilobytes>"
    old = put("/t?api-version=2017-04", size, kind)

    with pytest.raises(InvalidRequest, match="api-version 2021-05 or later"):
        parse_request(old)
    assert parse_request(put("/t?api-version=2021-05", size, kind)).properties.max_message_size
    assert parse_request(put("/t?api-version=2017-04", "", kind)).properties
    updated = put("/t?api-version=2017-04", size, kind, If_Match="*")
    assert parse_request(updated).update


def test_the_filters_of_a_topic_are_counted_by_kind_where_they_are_known():
    asked = GetEntity(entity=TOPIC)
    known = TopicInfo(path=TOPIC, sql_filters=2, correlation_filters=0)

    assert parse_response(asked, build_response(asked, known, ORIGIN)) == known
    assert "FilterCount" not in build_response(asked, TopicInfo(path=TOPIC), "").body.decode()


@pytest.mark.parametrize(
    ("description", "named"),
    [
        ('<Filter i:type="MyFilter"/>', "Filter: .*CorrelationFilter"),
        ('<Filter i:type="SqlFilter"/>', "SQL filter: 1 to 1024"),
        (
            f'<Filter i:type="SqlFilter"><SqlExpression>{"x" * 1025}</SqlExpression></Filter>',
            "SQL filter: 1 to 1024",
        ),
        ('<Action i:type="MyAction"/>', "Action: SqlRuleAction"),
    ],
)
def test_a_rule_is_refused_by_element_and_limit(description, named):
    with pytest.raises(InvalidRequest, match=named):
        parse_request(put_rule(description))


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("int", "9223372036854775808"),
        ("int", "1.5"),
        ("long", "9223372036854775808"),
        ("double", "1_0"),
        ("double", "many"),
        ("boolean", "yes"),
        ("dateTime", "tomorrow"),
        ("duration", "1 day"),
        ("decimal", "1"),
    ],
)
def test_a_value_is_refused_by_its_key(kind, text):
    value = (
        "<KeyValueOfstringanyType><Key>@p</Key>"
        f'<Value i:type="d6p1:{kind}" xmlns:d6p1="{XSD}">{text}</Value></KeyValueOfstringanyType>'
    )
    sql = f"<SqlExpression>a=@p</SqlExpression><Parameters>{value}</Parameters>"

    with pytest.raises(InvalidRequest, match="@p: "):
        parse_request(put_rule(f'<Filter i:type="SqlFilter">{sql}</Filter>'))


@pytest.mark.parametrize(
    "target",
    ["/t/subscriptions/" + "s" * 51, "/t/subscriptions/a%20b", "/t/subscriptions//rules/r"],
)
def test_a_name_is_refused_by_its_limit(target):
    with pytest.raises(InvalidRequest, match="subscription name: 1 to 50"):
        parse_request(get(target))


def test_an_int_beyond_32_bits_is_a_long():
    value = (
        "<KeyValueOfstringanyType><Key>@p</Key>"
        f'<Value i:type="x:int" xmlns:x="{XSD}">-2147483649</Value></KeyValueOfstringanyType>'
    )
    sql = f"<SqlExpression>a=@p</SqlExpression><Parameters>{value}</Parameters>"

    operation = parse_request(put_rule(f'<Filter i:type="SqlFilter">{sql}</Filter>'))

    assert operation.rule.filter.parameters == {"@p": -2147483649}


def test_a_value_of_another_type_cannot_be_written():
    rule = Rule(name="r", filter=SqlFilter(expression="a=@p", parameters={"@p": b"bytes"}))

    with pytest.raises(InvalidRequest, match=r"@p: .*string, int"):
        build_request(PutRule(topic=TOPIC, subscription="s", rule=rule))


@pytest.mark.parametrize(
    ("operation", "entity"),
    [
        (ListTopics(), None),
        (GetNamespace(), None),
        (DeleteEntity(entity=TOPIC), TOPIC),
        (DeleteRule(topic=TOPIC, subscription="s", name="r"), TOPIC),
    ],
)
def test_a_right_is_asked_for_on_the_topic(operation, entity):
    assert entity_of(operation) == entity


def test_dates_of_a_rule_are_utc():
    request = put_rule("<CreatedAt>2026-01-01T01:00:00+01:00</CreatedAt>")

    assert parse_request(request).rule.created == datetime(2026, 1, 1, tzinfo=UTC)
