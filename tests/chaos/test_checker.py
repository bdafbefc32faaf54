"""The checker reads files of JSON lines, and ends with an exit code."""

import json

import attrs
import pytest

from benchmarks.chaos.checker import PASSED, UNDECIDED, VIOLATED, check, exit_code, main, write
from gateway.checker.history import Killed, Opened
from tests.chaos.invariants import (
    ACKED,
    AGAIN,
    END,
    MAY_DEAD_LETTER,
    SENT,
    UNCERTAIN,
    WELL,
    attempt,
)

PRODUCER = [SENT, ACKED]
AUDITOR = [MAY_DEAD_LETTER, *END]
CONSUMER = WELL[2:]


def recorded(folder, **processes):
    for process, records in processes.items():
        write(folder, process, records)
    return folder


def test_files_are_judged_together(tmp_path):
    folder = recorded(tmp_path, producer=PRODUCER, auditor=AUDITOR, consumer=CONSUMER)

    assert main([str(folder)]) == PASSED


def test_a_broken_invariant_is_one(tmp_path, capsys):
    folder = recorded(tmp_path, producer=PRODUCER, auditor=AUDITOR)

    assert main([str(folder)]) == VIOLATED
    assert "S1: 1: accepted, and nowhere" in capsys.readouterr().out


def test_an_incomplete_audit_is_two(tmp_path, capsys):
    folder = recorded(tmp_path, producer=PRODUCER, auditor=AUDITOR[:-1])

    assert main([str(folder)]) == UNDECIDED
    assert "the audit didn't finish orders" in capsys.readouterr().out


def test_a_run_without_samples_ends_with_2(tmp_path):
    records = [one for one in AUDITOR if type(one).__name__ != "Sampled"]
    folder = recorded(tmp_path, producer=PRODUCER, consumer=CONSUMER, auditor=records)

    assert main([str(folder)]) == UNDECIDED


def test_an_empty_folder_is_two(tmp_path):
    assert main([str(tmp_path)]) == UNDECIDED


@pytest.mark.parametrize("line", [b"{}\n", b"x\n", b'{"k": "Acked", "t": "soon"}\n', b"\xff\n"])
def test_a_line_that_is_no_record_is_named(tmp_path, line):
    folder = recorded(tmp_path, producer=PRODUCER, auditor=AUDITOR, consumer=CONSUMER)
    with (folder / "producer.jsonl").open("ab") as file:
        file.write(line)

    judgement = check(folder)

    assert exit_code(judgement) == UNDECIDED
    assert judgement.undecided[0].startswith("producer.jsonl: line 3 is not a valid record: ")


def cut_off(folder, process):
    path = folder / f"{process}.jsonl"
    path.write_bytes(path.read_bytes()[:-5])


def test_a_file_that_is_cut_off_is_not_judged(tmp_path):
    folder = recorded(tmp_path, producer=PRODUCER, auditor=AUDITOR, consumer=CONSUMER)
    cut_off(folder, "consumer")

    assert check(folder).undecided == ("consumer.jsonl is cut off",)


def test_a_killed_process_may_leave_half_a_line(tmp_path):
    folder = recorded(
        tmp_path,
        producer=PRODUCER,
        auditor=[*AUDITOR, Killed(at=9, process="gateway")],
        consumer=CONSUMER,
        gateway=[Opened(at=0, process="gateway"), attempt(1), attempt(2)],
    )
    cut_off(folder, "gateway")

    assert exit_code(check(folder)) == PASSED


def test_json_has_every_invariant_and_every_class_of_message(tmp_path, capsys):
    other = [attrs.evolve(one, message_id="2") for one in PRODUCER]
    folder = recorded(
        tmp_path,
        producer=[*PRODUCER, *other],
        auditor=AUDITOR,
        consumer=[*CONSUMER, AGAIN],
        gateway=[UNCERTAIN],
    )

    code = main([str(folder), "--json"])

    found = json.loads(capsys.readouterr().out)
    assert found["exit"] == code == VIOLATED
    assert list(found["invariants"]) == [
        *(f"S{number}" for number in range(1, 15)),
        *(f"L{number}" for number in range(1, 7)),
    ]
    assert found["invariants"]["S1"]["validity"] == "broken"
    assert found["messages"]["lost"] == 1
    assert found["messages"]["duplicated"] == 1
    assert found["messages"]["amplification"] == 1.0
