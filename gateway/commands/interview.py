"""The questions of `pairgate config new`: each answer is checked when it is given, and kept."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Final

import attrs
import click

from gateway.app.operations import checking, new_config
from gateway.app.operations.findings import Grade
from gateway.app.operations.new_config import KINDS, PORTS, Answers, NewNamespace
from gateway.app.runtime import Runtime
from gateway.commands.terminal import printable, run, waiting
from gateway.config.errors import ConfigError

NO_SECONDARY: Final = "none"
_TRY_OF: Final = "x" * 44  # stands for a secret that is asked for next
_HIGHEST_PORT: Final = 65535

Check = Callable[[str], str]  # an answer's problem; empty: it is good


def _good(_: str) -> str:
    return ""


@attrs.define(eq=False)
class Interview:
    """The questions about one configuration. `given` has the answers so far, by their names."""

    earlier: Mapping[str, str] = attrs.field(factory=dict)  # of an interview that was left
    given: dict[str, str] = attrs.field(factory=dict)

    def answers(self) -> Answers:
        """
        Ask for everything.

        Raises:
            click.Abort: Ctrl-C, or no more input; `given` has what was answered.
        """
        primary = self._namespace("primary", list(KINDS))
        assert primary is not None
        secondary = self._namespace("secondary", [*KINDS, NO_SECONDARY], taken=primary.name)
        answers = Answers(primary=primary, secondary=secondary)
        # Without the label no pair can be read at all.
        if secondary is not None and new_config.problem_of(answers, "pairing.label"):
            answers = self._label(answers)
        answers = self._queues(answers)
        answers = self._addresses(answers)
        if secondary is not None:
            text = "Move the backlog home here? (no: `pairgate syphon` does it elsewhere)"
            answers = attrs.evolve(answers, enable_syphon=self._confirm("syphon", text, True))
        return answers

    def _namespace(self, role: str, kinds: list[str], taken: str = "") -> NewNamespace | None:
        """A namespace that answers, or that the user wants all the same; None if none is wanted."""
        while True:
            kind = self._ask(
                f"{role}.kind", f"Kind of the {role}", kinds[0], choices=click.Choice(kinds)
            )
            if kind == NO_SECONDARY:
                return None
            namespace = new_config.named(self._place(role, kind), taken)
            problem = "" if namespace.is_local else _unanswered(namespace)
            if not problem:
                return namespace
            click.echo(f"Error: {printable(problem)}", err=True)
            if self._confirm(f"{role}.keep", "Keep these answers all the same?", False):
                return namespace
            self.earlier = {**self.earlier, **self.given}

    def _place(self, role: str, kind: str) -> NewNamespace:
        """The answers about one namespace of that kind."""
        known, namespace = KINDS[kind], NewNamespace(kind=kind, url=KINDS[kind].default)
        if known.url:
            url = self._ask(
                f"{role}.url", f"URL of the {role} ({known.url})", check=partial(_url_problem, kind)
            )
            namespace = attrs.evolve(namespace, url=url)
        if known.secret:
            words = f"{known.secret.replace('_', ' ').capitalize()} of the {role}"
            secret = self._ask(
                f"{role}.secret", words, check=partial(_secret_problem, namespace), hidden=True
            )
            namespace = attrs.evolve(namespace, secret=secret)
        if known.has_management:
            text = f"URL of the {role}'s management API, for depths and policies (- for none)"
            check = partial(_management_problem, namespace)
            answer = self._ask(f"{role}.management", text, "-", check=check)
            namespace = attrs.evolve(namespace, management=_unless_none(answer))
        return namespace

    def _label(self, answers: Answers) -> Answers:
        text = "Label of the backlog queues, which no other pair may have on that secondary"

        def problem(label: str) -> str:
            return new_config.problem_of(attrs.evolve(answers, label=label), "pairing.label")

        label = self._ask("label", text, answers.primary.name, check=problem)
        return attrs.evolve(answers, label=label)

    def _queues(self, answers: Answers) -> Answers:
        def with_queues(text: str) -> Answers:
            return attrs.evolve(answers, queues=_words(text))

        def problem(text: str) -> str:
            return new_config.problem_of(with_queues(text), "namespaces.")

        names = self._ask("queues", "Queues, separated by spaces", "orders", check=problem)
        answers = with_queues(names)
        in_order = attrs.evolve(answers, ordered=answers.queues)
        if answers.secondary is None or new_config.problem_of(in_order, "pairing.ordered"):
            return answers  # the pair can't keep an order

        def unknown(text: str) -> str:
            others = [each for each in _words(_unless_none(text)) if each not in answers.queues]
            return f"{', '.join(others)}: none of the queues {names}" if others else ""

        text = "Those that must keep their order through an outage, as sessions do (- for none)"
        ordered = self._ask("ordered", text, "-", check=unknown)
        return attrs.evolve(answers, ordered=_words(_unless_none(ordered)))

    def _addresses(self, answers: Answers) -> Answers:
        text = "Serve clients of Azure Storage Queue, too?"
        answers = attrs.evolve(answers, storage=self._confirm("storage", text, False))

        def host_problem(host: str) -> str:
            return new_config.problem_of(attrs.evolve(answers, host=host), "endpoints")

        host = self._ask(
            "host", "Address to listen at, without a port", "127.0.0.1", check=host_problem
        )
        answers = attrs.evolve(answers, host=host)
        usual = " ".join(str(PORTS[protocol]) for protocol in answers.protocols)
        text = f"Ports of {', '.join(answers.protocols)}"
        ports = self._ask("ports", text, usual, check=partial(_ports_problem, answers))
        return _with_ports(answers, ports)

    def _ask(
        self,
        name: str,
        text: str,
        default: str = "",
        *,
        check: Check = _good,
        choices: click.Choice[str] | None = None,
        hidden: bool = False,
    ) -> str:
        """Ask until the answer is good. The default is the answer of an earlier interview."""
        known = self.earlier.get(name, default)
        while True:
            answer: str = click.prompt(
                f"{text} [as before]" if hidden and known else text,
                default=known or None,
                show_default=not hidden,
                type=choices or str,
                hide_input=hidden,
                err=True,
            )
            problem = check(answer)
            if not problem:
                self.given[name] = answer
                return answer
            click.echo(f"Error: {printable(problem)}", err=True)

    def _confirm(self, name: str, text: str, default: bool) -> bool:
        known = self.earlier.get(name, "yes" if default else "no") == "yes"
        answer = click.confirm(text, default=known, err=True)
        self.given[name] = "yes" if answer else "no"
        return answer


def _unless_none(text: str) -> str:
    return "" if text == "-" else text


def _words(text: str) -> tuple[str, ...]:
    return tuple(filter(None, text.replace(",", " ").split()))


def _namespace_problem(namespace: NewNamespace) -> str:
    """The problem of the namespace; empty: there is none."""
    try:
        new_config.read_namespace(namespace)
    except ConfigError as error:
        place = f": namespaces.{namespace.name}"
        return "; ".join(each.removeprefix(place).lstrip(".: ") for each in error.problems)
    return ""


def _url_problem(kind: str, url: str) -> str:
    secret = _TRY_OF if KINDS[kind].secret else ""
    return _namespace_problem(NewNamespace(kind=kind, url=url, secret=secret))


def _secret_problem(namespace: NewNamespace, secret: str) -> str:
    return _namespace_problem(attrs.evolve(namespace, secret=secret))


def _management_problem(namespace: NewNamespace, url: str) -> str:
    return _namespace_problem(attrs.evolve(namespace, management=_unless_none(url)))


def _ports_problem(answers: Answers, text: str) -> str:
    words, wanted = _words(text), len(answers.protocols)
    if len(words) != wanted or not all(word.isdecimal() for word in words):
        return f"{wanted} numbers expected, one for each of {', '.join(answers.protocols)}"
    if any(not 0 < int(word) <= _HIGHEST_PORT for word in words):
        return f"ports from 1 to {_HIGHEST_PORT} expected"
    return new_config.problem_of(_with_ports(answers, text), "endpoints")


def _with_ports(answers: Answers, text: str) -> Answers:
    ports = dict(zip(answers.protocols, map(int, _words(text)), strict=True))
    return attrs.evolve(answers, ports={**PORTS, **ports})


def _unanswered(namespace: NewNamespace) -> str:
    """Connect to the namespace; the reason why it doesn't answer as it should, with the remedy."""
    click.echo(f"connecting to {printable(namespace.name)} ...", err=True)
    with waiting("connecting"):
        findings = run(checking.try_namespace, new_config.read_namespace(namespace), Runtime())
    with suppress(StopIteration):
        return next(each.text for each in findings if each.grade is Grade.BAD)
    for finding in findings:
        click.echo(f"{finding.grade.value}: {printable(finding.text)}", err=True)
    return ""
