"""Each command, option, call and address that pages, help and errors name exists."""

import re
from typing import Final

import pytest

from gateway.app.status.sections import SECTIONS
from gateway.cli import COMMANDS
from gateway.frontends.admin.openapi import description
from gateway.wire.pairgate.control_calls import CONTROL_CALLS
from tests.mentions import (
    Text,
    all_options,
    calls,
    commands,
    options,
    problem_of,
    texts,
    urls,
    words,
)

# Options of other programs, on pages about them: Docker's, and those of the project's own tools.
FOREIGN: Final = {"--no-healthcheck", "--build-arg", "--init", "--fast"}
OWN_TOOLS: Final = ("benchmarks/", "CONTRIBUTING.md", "examples/")
# The calls of the data plane, and of the operators' page.
DATA_PLANE: Final = re.compile(
    r"/(\{\w+\}|orders)/messages[/?]?.*|/\$(pairgate/identity|servicebus/websocket)|/(page/\w+)?"
    r"|/CONTAINER/NAME|/\?restype=service.*|/health"
)
# 3000: a web application's, 8080: a handler's, 4318: a collector of OpenTelemetry, 10000: Azurite's
# blobs, 5671: AMQP over TLS.
PORTS: Final = {
    "5672",
    "5300",
    "10001",
    "5673",
    "9640",
    "3000",
    "8080",
    "4318",
    "10000",
    "5671",
    "",
}
# A page that denies what exists, or will exist.
DENIALS: Final = re.compile(r"\bno command does\b|\bnot implemented yet\b|\(not yet\)")


def test_each_word_after_the_name_of_the_program_is_a_command() -> None:
    wrong = {(text.place, word) for text in texts() for word in words(text)}

    assert {each for each in wrong if each[1] not in COMMANDS} == set()
    assert len(wrong) > 300


def test_each_command_has_the_options_and_arguments_that_it_is_named_with() -> None:
    named = [(text.place, each) for text in texts() for each in commands(text) if each]

    assert [(*each, problem) for each in named if (problem := problem_of(each[1]))] == []
    assert len(named) > 500


def test_each_option_that_stands_alone_is_one_of_some_command() -> None:
    wrong = {
        (text.place, option)
        for text in texts()
        for option in options(text)
        if not text.place.startswith(OWN_TOOLS)
    }

    assert {each for each in wrong if each[1] not in all_options() | FOREIGN} == set()
    assert len(wrong) > 50


def test_each_call_is_one_of_an_endpoint() -> None:
    paths = description(CONTROL_CALLS, SECTIONS)["paths"]
    known = {(method.upper(), path) for path, methods in paths.items() for method in methods}
    templates = [(method, re.sub(r"\{\w+\}", "[^/]+", path)) for method, path in known]

    def exists(method: str, path: str) -> bool:
        plain = path.partition("?")[0]
        return bool(DATA_PLANE.fullmatch(path)) or any(
            method == each and (re.fullmatch(template, plain) or plain in {"/v1/ACTION", "/v1/..."})
            for each, template in templates
        )

    named = {(text.place, *call) for text in texts() for call in calls(text)}
    assert {each for each in named if not exists(*each[1:])} == set()
    assert len(named) > 50


def test_each_address_of_this_machine_has_a_port_and_a_path_that_answer() -> None:
    paths = description(CONTROL_CALLS, SECTIONS)["paths"]
    named = {(text.place, *url) for text in texts() for url in urls(text)}
    admin = {(place, path.partition("?")[0]) for place, port, path in named if port == "9640"}

    assert {each for each in named if each[1] not in PORTS} == set()
    assert {each for each in admin if each[1] not in {"", "/", *paths}} == set()
    assert len(admin) > 5


def test_no_page_denies_a_command() -> None:
    assert [text.place for text in texts() if DENIALS.search(text.text)] == []


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        ("create drill", "create has no command drill"),
        ("creat queue drill", "no such command"),
        ("send orders hello twice", "more arguments than it takes: ['twice']"),
        ("failover orders --untill 5m", "No such option '--untill'"),
        ("completion csh", "csh is none of"),
    ],
)
def test_a_command_that_does_not_exist_is_found(written: str, problem: str) -> None:
    [found] = commands(Text("page", f"It takes `pairgate {written}` to do it."))

    assert problem_of(found).startswith(problem)


@pytest.mark.parametrize(
    "written",
    ["create queue NAME", "status", "failover --until", "send orders < file", "--version"],
)
def test_a_command_that_exists_is_no_mistake(written: str) -> None:
    [found] = commands(Text("page", f"`pairgate {written}`"))

    assert problem_of(found) == ""
