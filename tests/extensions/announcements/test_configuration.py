"""Mistakes about `[triggers]`, and the namespace of its topic."""

import pytest

from tests.config.texts import ONE, PAIR, config, problems


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("rabbitmq://guest@localhost", "rabbitmq"),
        ("amqp://localhost", "amqp"),
        ("storage-queue:UseDevelopmentStorage=true", "storage-queue"),
    ],
)
def test_triggers_need_a_namespace_with_topics(url: str, kind: str) -> None:
    password = "password = { env = 'KEY' }" if kind == "rabbitmq" else ""
    text = f"[namespaces.here]\nurl = '{url}'\n{password}\n[triggers]\ntopic = 'news'\n"

    (found,) = problems(text)

    assert found.startswith(
        f"triggers.namespace: 'here' is of the kind {kind}, which doesn't support topics; use one"
    )


@pytest.mark.parametrize(
    ("addition", "problem"),
    [
        ("[triggers]", "triggers.topic: is missing"),
        ("[triggers]\ntopic = 'a//b'", "triggers.topic: entity name 'a//b': "),
        (
            "[triggers]\ntopic = 'news'\nnamespace = 'there'",
            "triggers.namespace: there is no namespace 'there'; configured are here",
        ),
        ("[triggers]\ntopic = 'news'\nwindow = '0s'", "triggers.window: must be >= 0.001: 0.0"),
        ("[listener]\ntriggers = 'http://a'", "listener.triggers: a list expected"),
    ],
)
def test_mistakes_about_triggers(addition: str, problem: str) -> None:
    assert [line for line in problems(ONE + addition) if line.startswith(problem)]


def test_a_namespace_that_keeps_only_triggers_needs_no_pair() -> None:
    text = "[namespaces.keeper]\nurl = 'memory:'\n" + ONE
    found = config(f"{text}[triggers]\ntopic = 'news'\nnamespace = 'keeper'")

    assert found.home.name == "here"
    assert [topic.path.name for topic in found.namespaces["keeper"].plan.topics] == ["news"]
    assert found.namespaces["here"].plan.topics == ()


def test_the_primary_keeps_the_topic_of_the_triggers_where_nobody_else_is_named() -> None:
    found = config(PAIR + "[triggers]\ntopic = 'news'")

    assert [topic.path.name for topic in found.namespaces["east"].plan.topics] == ["news"]
