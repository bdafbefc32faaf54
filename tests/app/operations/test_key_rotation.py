"""Keys that are changed while clients use them; steps that are repeated and interrupted."""

import tomllib
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest
from click.testing import CliRunner

from gateway.app.failure import Failure
from gateway.app.operations.key_rotation import (
    KeyRotation,
    Stage,
    backlog_doubt,
    keys_of_pair,
    lets_go_on,
    rotate,
    rotate_envelope,
)
from gateway.cli import main
from gateway.config.file import Loaded, load
from gateway.domain.health.process_records import PairProcess
from gateway.domain.status.pair import SpoolStatus
from tests.wire.pairgate.status import OUTAGE

CONFIG = """# the first line stays
[namespaces.east]
url = "embedded:east.db"

[namespaces.west]
url = "embedded:west.db"

[[access]]                     # of clients
name = "orders"
key = { file = "keys/orders" } # the newest
rights = ["Send"]

[[access]]
name = "ops"
key = { env = "OPS_KEY" }
rights = ["Manage"]

[[accounts]]
name = "contoso"
key = { file = "keys/contoso" }

[pairing]
primary = "east"
secondary = "west"
label = "east"
envelope_keys = [
    { id = "old", key = { file = "keys/envelope" } },
]
"""
WITHOUT_KEYS = CONFIG[: CONFIG.index("envelope_keys")]
OLD = "b2xkIGtleSBvZiBzaXh0ZWVuIGJ5dGVz"


class Here:
    """A configuration and its keys."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "pairgate.toml"
        (folder / "keys").mkdir()
        self.file.write_text(CONFIG)
        for name in ("orders", "contoso", "envelope"):
            (folder / "keys" / name).write_text(f"{OLD}\n")
            (folder / "keys" / name).chmod(0o600)

    def load(self) -> Loaded:
        return load(self.file, environ={"OPS_KEY": OLD}, here=self.folder)

    def key(self, name: str) -> str:
        return (self.folder / "keys" / name).read_text().strip()

    def keys_of(self, name: str) -> tuple[str, ...]:
        return next(each.keys for each in self.load().config.access if each.name == name)

    def rotate(self, name: str = "orders", *, finish: bool = False) -> KeyRotation:
        return rotate(self.load(), self.file, name, {"OPS_KEY": OLD}, finish=finish)

    def envelope(self, *, use: bool = False, finish: bool = False) -> KeyRotation:
        environ = {"OPS_KEY": OLD}
        return rotate_envelope(self.load(), self.file, environ, use=use, finish=finish)

    def signers(self) -> list[tuple[str, str]]:
        pairing = self.load().config.pairing
        assert pairing is not None
        return [(each.id, each.key.decode()) for each in pairing.envelope_keys]


@pytest.fixture
def here(tmp_path: Path) -> Here:
    return Here(tmp_path)


def test_both_keys_are_valid_until_the_rotation_is_finished(here: Here) -> None:
    begun = here.rotate()
    new = here.key("orders")
    during = here.keys_of("orders")
    finished = here.rotate(finish=True)

    assert (begun.stage, begun.changed) == (Stage.BEGUN, True)
    assert new != OLD
    assert during == (new, OLD)
    assert (finished.stage, finished.changed) == (Stage.FINISHED, True)
    assert here.keys_of("orders") == (new,)
    assert here.file.read_text() == CONFIG
    assert sorted(file.name for file in (here.folder / "keys").iterdir()) == [
        "contoso",
        "envelope",
        "orders",
    ]


def test_a_step_that_is_repeated_changes_nothing(here: Here) -> None:
    here.rotate()
    new, text = here.key("orders"), here.file.read_text()

    again = here.rotate()

    assert (again.stage, again.changed) == (Stage.BEGUN, False)
    assert (here.key("orders"), here.file.read_text()) == (new, text)
    here.rotate(finish=True)
    assert (here.rotate(finish=True).stage, here.key("orders")) == (Stage.NONE, new)


def test_only_the_line_of_the_second_key_is_added(here: Here) -> None:
    here.rotate()

    added = [line for line in here.file.read_text().splitlines() if line not in CONFIG]
    assert added == ['second_key = { file = "keys/orders.old" }']


@pytest.mark.parametrize("steps", range(3))
def test_an_interrupted_step_is_completed(
    here: Here, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step writes three files, and may end before each of them."""
    replace, left = Path.replace, [steps]

    def interrupted(path: Path, target: Path) -> Path:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        here.rotate()
    monkeypatch.undo()
    assert OLD in here.keys_of("orders")

    here.rotate()

    assert here.key("orders") != OLD
    assert here.keys_of("orders") == (here.key("orders"), OLD)


def test_an_interrupted_rotation_is_not_finished_with_the_old_key(here: Here) -> None:
    here.rotate()
    (here.folder / "keys" / "orders").write_text(OLD)

    with pytest.raises(Failure, match="interrupted before the new key was written"):
        here.rotate(finish=True)


def test_two_rotations_at_once_keep_the_key_that_clients_have(here: Here) -> None:
    seen_before = here.load()
    here.rotate()
    new = here.key("orders")

    with pytest.raises(Failure, match="somebody else rotates this key now"):
        rotate(seen_before, here.file, "orders", {"OPS_KEY": OLD}, finish=False)
    assert here.keys_of("orders") == (new, OLD)


def test_a_file_that_another_policy_has_too_is_not_rotated(here: Here) -> None:
    shared = '[[access]]\nname = "other"\nkey = { file = "./keys/orders" }\nrights = ["Listen"]\n'
    here.file.write_text(f"{CONFIG}\n{shared}")
    before = here.file.read_text()

    with pytest.raises(Failure, match="access 'other' has the same file as its key"):
        here.rotate()
    assert (here.file.read_text(), here.key("orders")) == (before, OLD)


def test_an_edit_of_the_configuration_meanwhile_is_kept(here: Here) -> None:
    seen_before = here.load()
    edited = f"{CONFIG}\n# a word of an operator\n"
    here.file.write_text(edited)

    with pytest.raises(Failure, match="was changed meanwhile, and is left as it is"):
        rotate(seen_before, here.file, "orders", {"OPS_KEY": OLD}, finish=False)
    assert (here.file.read_text(), here.key("orders")) == (edited, OLD)
    here.rotate()
    assert here.keys_of("orders")[1] == OLD


def test_an_old_key_of_the_envelope_is_needed_while_messages_may_wait_under_it() -> None:
    assert OUTAGE.pair is not None

    def doubt(pending: int | None, *spooled: int | None, counted: bool = False) -> str:
        backlog = attrs.evolve(OUTAGE.pair.backlog, pending=pending, counted=counted)
        spool = None
        for waiting in spooled:
            spool = SpoolStatus(
                pending=waiting, oldest_age=None, rate_in=0.0, rate_out=0.0, free_bytes=None
            )
        pair = attrs.evolve(OUTAGE.pair, backlog=backlog, spool=spool)
        return backlog_doubt(attrs.evolve(OUTAGE, pair=pair))

    assert doubt(0) == ""
    assert doubt(0, counted=True) == "the number of messages on the backlog isn't known"
    assert doubt(7, counted=True) == "7 messages wait on the backlog"
    assert doubt(None) == "the number of messages on the backlog isn't known"
    assert doubt(0, 0) == ""
    assert doubt(0, 500) == "500 messages wait in the local spool"
    assert doubt(0, None) == "the number of messages in the local spool isn't known"
    assert "no gateway here tells" in backlog_doubt(None)


def test_the_command_asks_before_it_removes_a_key_of_the_envelope(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPS_KEY", OLD)
    monkeypatch.chdir(here.folder)

    def keys(*words: str) -> tuple[int, str]:
        done = CliRunner().invoke(main, ["keys", "rotate", *words])
        return done.exit_code, done.output

    assert keys("envelope", "--finish")[0] == 0  # nothing is under way
    assert keys("orders", "--finish", "--force")[0] == 2
    for words in ((), ("--use",)):
        assert keys("envelope", *words)[0] == 0
    code, told = keys("envelope", "--finish")
    assert (code, len(here.signers())) == (75, 2)
    assert "no gateway here tells whether messages wait on the backlog" in " ".join(told.split())
    assert keys("envelope", "--finish", "--force")[0] == 0
    assert len(here.signers()) == 1


def test_an_account_gets_a_key_in_base64(here: Here) -> None:
    here.rotate("contoso")

    (account,) = here.load().config.accounts
    assert len(account.keys) == 2
    assert len(account.keys[0]) == 32


def test_new_files_have_the_mode_of_the_old_one(here: Here) -> None:
    (here.folder / "keys" / "orders").chmod(0o640)

    here.rotate()

    files = [here.folder / "keys" / name for name in ("orders", "orders.old")]
    assert {file.stat().st_mode & 0o777 for file in files} == {0o640}


def test_no_secret_is_in_the_result(here: Here) -> None:
    assert here.key("orders") not in repr(here.rotate())


@pytest.mark.parametrize(
    ("change", "name", "problem"),
    [
        (lambda text: text, "ops", "access 'ops': key is not in a file"),
        (lambda text: text, "nobody", "there are: orders, ops, contoso"),
        (
            lambda text: text.replace("# the newest", '\nsecond_key = { env = "OPS_KEY" }'),
            "orders",
            "has a second_key of its own",
        ),
        (lambda text: text.replace('"contoso"', '"orders"'), "orders", "rename one of them"),
        (
            lambda text: (
                "access = [{ name = 'orders', rights = ['Send'], key = { file = 'keys/orders' } }]"
                f"\n{text[: text.index('[[access]]')]}{text[text.index('[[accounts]]') :]}"
            ),
            "orders",
            "by hand",
        ),
    ],
)
def test_a_key_that_can_not_be_rotated_here_is_left_alone(
    here: Here, change: Callable[[str], str], name: str, problem: str
) -> None:
    text = change(CONFIG)
    here.file.write_text(text)

    with pytest.raises(Failure, match=problem):
        here.rotate(name)

    assert (here.key("orders"), here.file.read_text()) == (OLD, text)
    assert not (here.folder / "keys" / "orders.old").exists()


def test_a_new_key_of_the_envelope_verifies_before_it_signs_and_then_alone(here: Here) -> None:
    begun = here.envelope()
    first = here.signers()
    used = here.envelope(use=True)
    second = here.signers()
    finished = here.envelope(finish=True)
    new = here.key("envelope-1")

    assert [each.stage for each in (begun, used, finished)] == [
        Stage.BEGUN,
        Stage.USED,
        Stage.FINISHED,
    ]
    assert first == [("old", OLD), ("1", new)]
    assert second == first[::-1]
    assert here.signers() == [("1", new)]
    assert tomllib.loads(here.file.read_text())["pairing"]["primary"] == "east"
    here.envelope()
    assert [each for each, _ in here.signers()] == ["1", "2"]


def test_comments_of_the_envelope_s_keys_stay(here: Here) -> None:
    line = 'envelope_keys = [{ id = "old#", key = { file = "keys/envelope" } }]  # of the safe'
    here.file.write_text(f"{WITHOUT_KEYS}{line}\n# the last line")

    for use, finish in ((False, False), (True, False), (False, True)):
        here.envelope(use=use, finish=finish)
        *_, changed, last = here.file.read_text().splitlines()

        assert changed.startswith("envelope_keys = [{ id = ")
        assert changed.endswith(" } }]  # of the safe")
        assert last == "# the last line"


def test_keys_of_the_envelope_in_sections_of_their_own_are_changed_by_hand(here: Here) -> None:
    section = '[[pairing.envelope_keys]]\nid = "1"\nkey = { file = "keys/envelope" }\n'
    text = WITHOUT_KEYS + section
    here.file.write_text(text)

    with pytest.raises(Failure, match=r"has sections of its own.*by hand"):
        here.envelope()

    assert here.file.read_text() == text


def test_steps_of_the_envelope_can_be_repeated_and_not_be_left_out(here: Here) -> None:
    here.envelope()
    before = here.signers()

    assert not here.envelope().changed
    with pytest.raises(Failure, match="doesn't sign yet"):
        here.envelope(finish=True)
    assert here.signers() == before
    here.envelope(use=True)
    assert not here.envelope(use=True).changed
    here.envelope(finish=True)
    assert here.envelope(finish=True).stage is Stage.NONE


def test_without_a_key_of_the_envelope_the_failure_says_where_it_belongs(here: Here) -> None:
    here.file.write_text(WITHOUT_KEYS)

    with pytest.raises(Failure, match=r"\[pairing\] envelope_keys"):
        here.envelope()


def process(keys: tuple[str, ...] | None) -> PairProcess:
    return PairProcess(
        name="serve on a (process 1)",
        version="1",
        started=OUTAGE.at,
        seen=OUTAGE.at,
        state="alive",
        reads=True,
        keys=keys,
    )


def test_each_process_of_the_pair_tells_which_keys_it_has_read() -> None:
    assert OUTAGE.pair is not None
    pair = attrs.evolve(
        OUTAGE.pair,
        processes=tuple(
            PairProcess(
                name=name,
                version="",
                started=OUTAGE.at,
                seen=OUTAGE.at,
                state=state,
                reads=True,
                keys=keys,
            )
            for name, state, keys in (
                ("serve on a (process 1)", "alive", ("1",)),
                ("syphon on b (process 2)", "alive", ("1",)),
                ("syphon on c (process 3)", "alive", ("1", "2")),
                ("serve on d (process 4)", "alive", None),
                ("syphon on b (process 5)", "ended", ("1",)),
            )
        ),
    )
    status = attrs.evolve(OUTAGE, pair=pair)

    has_new = lets_go_on(["1", "2"], use=True, finish=False)
    assert has_new is not None
    known = keys_of_pair(status, lambda each: each.name.startswith("serve on a") or has_new(each))

    assert [each.confirmed for each in known.read] == [True, False, True, False]
    assert known.lacking == known.read[1::2]
    assert known.doubts == (
        "syphon on b (process 2): it has 1",
        "serve on d (process 4): its keys aren't known",
    )


def test_a_pair_whose_processes_are_not_known_has_confirmed_nothing() -> None:
    assert OUTAGE.pair is not None
    pair = attrs.evolve(OUTAGE.pair, processes=(), reach_unknown="nobody has asked yet")

    told = keys_of_pair(attrs.evolve(OUTAGE, pair=pair), lambda _: True)
    none_tells = keys_of_pair(None, lambda _: True)

    assert told.doubts == ("other processes aren't known: nobody has asked yet",)
    assert none_tells.doubts == ()


@pytest.mark.parametrize(
    ("keys", "step", "ready"),
    [
        (["1", "2"], "use", {("1", "2"), ("2", "1"), ("2",)}),
        (["2", "1"], "finish", {("2", "1"), ("2",)}),
        (["2", "1"], "use", None),  # it is done
        (["2"], "finish", None),
        (["1"], "use", None),  # nothing is under way
        (["1"], "begin", None),
    ],
)
def test_a_step_waits_for_the_processes_that_lack_the_new_key(
    keys: list[str], step: str, ready: set[tuple[str, ...]] | None
) -> None:
    confirms = lets_go_on(keys, use=step == "use", finish=step == "finish")

    if ready is None:
        assert confirms is None
        return
    assert confirms is not None
    all_keys = [("1",), ("1", "2"), ("2", "1"), ("2",), None]
    assert {each for each in all_keys if confirms(process(each))} == ready
