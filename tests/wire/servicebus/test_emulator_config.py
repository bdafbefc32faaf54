import json
import time
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.entity import EntityPath, EntityStatus, QueueProperties
from gateway.domain.plan import Plan, PlannedQueue, PlannedSubscription, PlannedTopic
from gateway.domain.topics.filters import CorrelationFilter, Rule, SqlAction, SqlFilter
from gateway.domain.topics.topology import SubscriptionProperties, TopicProperties
from gateway.wire.servicebus.emulator_config import MAX_BYTES, parse_emulator_config

# In the form of the file that comes with the emulator, and a rule of SQL.
CONFIG: dict[str, Any] = {
    "UserConfig": {
        "Namespaces": [
            {
                "Name": "sbemulatorns",
                "Queues": [
                    {
                        "Name": "queue.1",
                        "Properties": {
                            "DeadLetteringOnMessageExpiration": False,
                            "DefaultMessageTimeToLive": "PT1H",
                            "DuplicateDetectionHistoryTimeWindow": "PT20S",
                            "ForwardDeadLetteredMessagesTo": "",
                            "ForwardTo": "",
                            "LockDuration": "PT1M",
                            "MaxDeliveryCount": 3,
                            "RequiresDuplicateDetection": False,
                            "RequiresSession": True,
                        },
                    },
                    {"Name": "queue.2"},
                ],
                "Topics": [
                    {
                        "Name": "topic.1",
                        "Properties": {
                            "DefaultMessageTimeToLive": "PT1H",
                            "DuplicateDetectionHistoryTimeWindow": "PT20S",
                            "RequiresDuplicateDetection": True,
                        },
                        "Subscriptions": [
                            {
                                "Name": "subscription.1",
                                "Properties": {"MaxDeliveryCount": 3, "ForwardTo": "queue.1"},
                                "Rules": [
                                    {
                                        "Name": "correlated",
                                        "Properties": {
                                            "FilterType": "Correlation",
                                            "CorrelationFilter": {
                                                "ContentType": "application/text",
                                                "Label": "subject1",
                                                "Properties": {"prop3": "value3", "n": 5},
                                            },
                                        },
                                    },
                                    {
                                        "Name": "sql",
                                        "Properties": {
                                            "FilterType": "Sql",
                                            "SqlFilter": {"SqlExpression": "a = 1"},
                                            "Action": {"SqlExpression": "SET b = 2"},
                                        },
                                    },
                                ],
                            },
                            {"Name": "subscription.2"},
                        ],
                    }
                ],
            }
        ],
        "Logging": {"Type": "File"},
    }
}


def read(value: object) -> tuple[Plan, list[str]]:
    return parse_emulator_config(json.dumps(value).encode())


def with_namespace(**parts: object) -> dict[str, Any]:
    return {"UserConfig": {"Namespaces": [{"Name": "sb", **parts}]}}


def with_queue(**parts: object) -> dict[str, Any]:
    return with_namespace(Queues=[{"Name": "q", **parts}])


def with_rule(**properties: object) -> dict[str, Any]:
    rule = {"Name": "r", "Properties": properties}
    return with_namespace(Topics=[{"Name": "t", "Subscriptions": [{"Name": "s", "Rules": [rule]}]}])


def test_the_emulators_file_is_read():
    plan, problems = read(CONFIG)

    assert problems == []
    assert plan == Plan(
        queues=(
            PlannedQueue(
                path=EntityPath("queue.1"),
                properties=QueueProperties(
                    default_time_to_live=timedelta(hours=1),
                    duplicate_detection_window=timedelta(seconds=20),
                    max_delivery_count=3,
                    requires_session=True,
                ),
            ),
            PlannedQueue(path=EntityPath("queue.2")),
        ),
        topics=(
            PlannedTopic(
                path=EntityPath("topic.1"),
                properties=TopicProperties(
                    default_time_to_live=timedelta(hours=1),
                    duplicate_detection_window=timedelta(seconds=20),
                    requires_duplicate_detection=True,
                ),
                subscriptions=(
                    PlannedSubscription(
                        name="subscription.1",
                        properties=SubscriptionProperties(
                            max_delivery_count=3, forward_to="queue.1"
                        ),
                        rules=(
                            Rule(
                                name="correlated",
                                filter=CorrelationFilter(
                                    content_type="application/text",
                                    label="subject1",
                                    properties={"prop3": "value3", "n": 5},
                                ),
                            ),
                            Rule(
                                name="sql",
                                filter=SqlFilter(expression="a = 1"),
                                action=SqlAction(expression="SET b = 2"),
                            ),
                        ),
                    ),
                    PlannedSubscription(name="subscription.2"),
                ),
            ),
        ),
    )


def test_comments_and_last_commas_are_skipped_as_the_emulator_does() -> None:
    text = """{"UserConfig": { // the emulator's own file has some
      "Namespaces": [{"Name": "n", /* Topics: none, */
        "Queues": [{"Name": "q", "Properties": {"UserMetadata": "//a /* \\" ,] */",},}, ],
      // "Topics": []
      }]}}"""

    plan, problems = parse_emulator_config(text.encode())

    assert problems == []
    [queue] = plan.queues
    assert queue.properties.user_metadata == '//a /* " ,] */'


@pytest.mark.parametrize(
    ("text", "place"),
    [('{\n/* a\nb */ "a" 1}', "line 3 column 10"), ("{ /* never closed }", "column 20")],
)
def test_a_mistake_beside_comments_is_named_by_its_place(text: str, place: str) -> None:
    [problem] = parse_emulator_config(text.encode())[1]

    assert place in problem


def test_many_comments_that_begin_are_read_once() -> None:
    began = time.process_time()
    parse_emulator_config(b"{" + b"/*" * 1_000_000)

    assert time.process_time() - began < 20  # a search from each would take hours


def test_a_byte_order_mark_is_skipped():
    body = json.dumps(CONFIG).encode("utf-8-sig")

    assert parse_emulator_config(body) == read(CONFIG)


def test_every_property_of_the_management_can_be_given():
    plan, problems = read(with_queue(Properties={"Status": "Disabled", "UserMetadata": "mine"}))

    assert problems == []
    assert plan.queues[0].properties == QueueProperties(
        status=EntityStatus.DISABLED, user_metadata="mine"
    )


QUEUE = "UserConfig.Namespaces[0].Queues[0]"
RULE = "UserConfig.Namespaces[0].Topics[0].Subscriptions[0].Rules[0]"


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ([], "an object expected, got []"),
        ({}, "UserConfig: an object expected, got nothing"),
        ({"UserConfig": {}}, "UserConfig.Namespaces: a list of one namespace expected"),
        (with_namespace(Queue=[]), "UserConfig.Namespaces[0].Queue: unknown key; did you mean"),
        (with_namespace(Queues={}), "UserConfig.Namespaces[0].Queues: a list expected"),
        (with_namespace(Queues=[{}]), f"{QUEUE}: Name: a text expected, got nothing"),
        (with_namespace(Queues=[{"Name": "a b"}]), f"{QUEUE}: entity name 'a b': segments of"),
        (
            with_namespace(Queues=[{"Name": "a"}], Topics=[{"Name": "A"}]),
            "UserConfig.Namespaces[0].Topics[0]: Name: 'a' is given twice",
        ),
        (
            with_queue(Properties={"LockDuration": "PT6M"}),
            f"{QUEUE}.Properties.LockDuration: value: a duration of more than 0 and up to PT5M",
        ),
        (
            with_queue(Properties={"MaxDeliveryCount": 0}),
            f"{QUEUE}.Properties.MaxDeliveryCount: value: a number from 1 to 2147483647",
        ),
        (
            with_queue(Properties={"RequiresSession": []}),
            f"{QUEUE}.Properties.RequiresSession: a text, a number, true or false expected",
        ),
        (
            with_queue(Properties={"RequireSession": True}),
            f"{QUEUE}.Properties.RequireSession: unknown key; did you mean 'RequiresSession'",
        ),
        (
            with_namespace(Topics=[{"Name": "t", "Subscriptions": [{"Name": "s" * 51}]}]),
            "UserConfig.Namespaces[0].Topics[0].Subscriptions[0]: subscription name: 1 to 50",
        ),
        (with_rule(FilterType="Other"), f"{RULE}: FilterType: Sql or Correlation expected"),
        (with_rule(FilterType="Sql"), f"{RULE}: SqlFilter: an object expected, got nothing"),
        (
            with_rule(FilterType="Sql", SqlFilter={"SqlExpression": "a ="}),
            f"{RULE}: SQL filter",
        ),
        (
            with_rule(
                FilterType="Sql",
                SqlFilter={"SqlExpression": "a = 1"},
                Action={"SqlExpression": "a = 1"},
            ),
            f"{RULE}: SQL action, position 1: SET or REMOVE expected",
        ),
        (
            with_rule(FilterType="Correlation", CorrelationFilter={"Properties": {"a": []}}),
            f"{RULE}: a: a text, a number, true or false expected",
        ),
    ],
)
def test_a_mistake_is_named_by_its_path(value, problem):
    _, problems = read(value)

    assert len(problems) == 1
    assert problems[0].startswith(problem)


def test_all_mistakes_are_told_at_once():
    _, problems = read(with_queue(Properties={"LockDuration": "x", "MaxDeliveryCount": "x"}))

    assert [problem.split(": ")[0].rpartition(".")[2] for problem in problems] == [
        "LockDuration",
        "MaxDeliveryCount",
    ]


def test_a_file_that_is_too_large_is_refused():
    _, problems = parse_emulator_config(b" " * (MAX_BYTES + 1))

    assert problems == [f"file: up to {MAX_BYTES} bytes expected, got {MAX_BYTES + 1}"]


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(
                st.sampled_from(["UserConfig", "Namespaces", "Queues", "Name", "Properties", "x"]),
                inner,
            )
        ),
    )
)
def test_no_json_makes_it_crash(value):
    read(value)
