"""The file of a scenario is read, and a wrong file is refused with its reason."""

import pytest

from benchmarks.chaos.run import main, plans
from benchmarks.chaos.scenario import FOLDER, Kind, ScenarioFailed, Topology, find, read
from benchmarks.chaos.topologies import bounds_of, entities_of
from gateway.checker.history import FaultTarget

KILLED = """
title = "a kill"

[[faults]]
kind = "killed"
target = "primary"
at = 2.0
lasts = 4.0
"""


def written(folder, text):
    path = folder / "one.toml"
    path.write_text(text)
    return path


def wrong(folder, text):
    with pytest.raises(ScenarioFailed) as error:
        read(written(folder, text))
    return str(error.value)


def test_every_kind_of_fault_has_a_scenario():
    scenarios = find([])

    assert {fault.kind for one in scenarios for fault in one.faults} == set(Kind)
    assert {fault.target for one in scenarios for fault in one.faults} == set(FaultTarget)
    assert {where for one in scenarios for where in one.topologies} == set(Topology)


def test_a_scenario_is_called_by_its_file(tmp_path):
    scenario = read(written(tmp_path, KILLED))

    assert scenario.name == "one"
    assert scenario.ends == 6.0
    assert not scenario.proxied


@pytest.mark.parametrize(
    ("target", "syphons", "backoffs"),
    [("primary", 0, 2.4), ("gateway", 0, 6), ("gateway", 1, 2.4), ("syphon", 1, 6)],
)
def test_messages_of_a_killed_syphon_may_wait_in_the_next_ones_first_seconds(
    tmp_path, target, syphons, backoffs
):
    text = f"syphons = {syphons}\n{KILLED.replace('primary', target)}"
    bounds = bounds_of(read(written(tmp_path, text)), "10s")

    assert (bounds.longest_backoff, bounds.failover_interval) == (backoffs, 10)


@pytest.mark.parametrize("on_unknown", ["raise", "divert"])
def test_the_bounds_know_whether_unknown_is_told(tmp_path, on_unknown):
    scenario = read(written(tmp_path, f'on_unknown = "{on_unknown}"\n{KILLED}'))

    assert bounds_of(scenario, "0s").raises_unknown is (on_unknown == "raise")


def test_a_syphon_that_only_stands_still_begins_nothing_anew(tmp_path):
    text = "syphons = 1\n" + KILLED.replace("primary", "syphon").replace('"killed"', '"frozen"')

    assert bounds_of(read(written(tmp_path, text)), "0s").longest_backoff == 2.4


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('colour = "red"', "colour"),
        ("rate = 0", "rate"),
        ('topologies = ["azure"]', "topologies"),
        ("intervals = []", "intervals"),
    ],
)
def test_a_wrong_key_or_value_is_named(tmp_path, line, told):
    assert told in wrong(tmp_path, f"{line}\n{KILLED}")


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("probability = 0.5", "probability"),
        ("repeat = 2\nevery = 4.0", "every"),
        ('[[faults]]\nkind = "frozen"\ntarget = "primary"\nlasts = 1.0\nat = 5.0', "same time"),
        ('[[faults]]\nkind = "killed"\ntarget = "syphon"\nlasts = 1.0', "syphons"),
        ('[[faults]]\nkind = "slow"\ntarget = "gateway"\nlasts = 1.0', "target"),
        ('[[faults]]\nkind = "clock-ahead"\ntarget = "syphon"\nlasts = 1.0', "syphons"),
        ('[[faults]]\nkind = "killed"\ntarget = "host"\nlasts = 1.0', "host"),
        ('[[faults]]\nkind = "late"\ntarget = "secondary"\nlasts = 1.0', "late"),
        ("late = [1.0, 2.0]", "late"),
        ('[[faults]]\nkind = "emptied"\ntarget = "secondary"\nlasts = 1.0', "primary expected"),
        ('[[faults]]\nkind = "no-credit"\ntarget = "secondary"\nlasts = 1.0', "amqp only"),
    ],
)
def test_a_fault_that_can_not_be_is_refused(tmp_path, line, told):
    assert told in wrong(tmp_path, KILLED + line)


@pytest.mark.parametrize(("topology", "told"), [("azurite", "keeps little"), ("rabbitmq", "HTTP")])
def test_a_topology_must_fit_the_fault(tmp_path, topology, told):
    busy = '[[faults]]\nkind = "busy"\ntarget = "secondary"\nlasts = 1.0'

    assert told in wrong(tmp_path, f'topologies = ["{topology}"]\n{KILLED}{busy}')


def test_a_limit_of_connections_is_for_rabbitmq(tmp_path):
    limited = '[[faults]]\nkind = "limited"\ntarget = "primary"\nlasts = 1.0'

    assert "rabbitmq only" in wrong(tmp_path, f'title = "one"\n{limited}')


def test_a_fault_comes_as_often_as_it_says(tmp_path):
    scenario = read(written(tmp_path, KILLED + "repeat = 3\nevery = 5.0"))

    assert scenario.faults[0].spans == [(2.0, 6.0), (7.0, 11.0), (12.0, 16.0)]


def test_each_topology_and_interval_is_a_run():
    killed = find(["primary-killed"])

    assert len(plans(killed, None, None)) == 12
    assert len(plans(killed, "rabbitmq", "0s")) == 1
    assert len(plans([killed[0].quick()], None, None)) == 1


def test_a_scenario_that_is_not_there_is_no_run(tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["nowhere", "--out", str(tmp_path)])

    assert ended.value.code == 2
    assert str(FOLDER / "nowhere.toml") in capsys.readouterr().err


def test_a_scenario_may_have_many_entities_and_times_of_its_own(tmp_path):
    scenario = read(
        written(tmp_path, f"entities = 4\nattempt_timeout = 10.0\nsend_timeout = 30.0\n{KILLED}")
    )

    assert entities_of(scenario) == ["orders", "invoices", "queue-0002", "queue-0003"]
    assert bounds_of(scenario, "0s").attempt_timeout == 10.0
    assert bounds_of(scenario, "0s").send_timeout == 30.0


WRONG_KEY = """
title = "a wrong key"
syphons = 1
[[faults]]
kind = "wrong-key"
target = "{target}"
lasts = 8.0
"""


def test_a_wrong_key_is_a_syphons_which_begins_anew_when_it_is_mended(tmp_path):
    scenario = read(written(tmp_path, WRONG_KEY.format(target="syphon")))

    assert scenario.kills_a_syphon
    assert not scenario.proxied
    with pytest.raises(ScenarioFailed, match="syphon expected for wrong-key"):
        read(written(tmp_path, WRONG_KEY.format(target="gateway")))


def test_a_clock_and_its_process_may_be_harmed_at_the_same_time(tmp_path):
    path = tmp_path / "both.toml"
    path.write_text(
        'title = "both"\n'
        '[[faults]]\nkind = "refused"\ntarget = "primary"\nlasts = 4.0\n'
        '[[faults]]\nkind = "clock-ahead"\ntarget = "primary"\nstep = 60.0\nlasts = 4.0\n'
    )

    assert [fault.step for fault in read(path).faults] == [1800.0, 60.0]
