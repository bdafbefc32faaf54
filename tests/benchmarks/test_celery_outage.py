"""The benchmark that runs Celery with and without the gateway: its table, and what it asks for."""

import pytest

from benchmarks.celery_outage import Load, read_load, row_of


def test_a_publish_that_raised_is_a_task_and_an_error() -> None:
    seen = {"taken": 3, "failed": ["OperationalError"], "longest": 2.3, "results": 2}

    row = row_of("killed", "directly", seen, first=0.5, is_worker_alive=True)

    assert (row.tasks, row.errors, row.results, row.longest) == (4, 1, 2, 2.3)
    assert row.failures == {"OperationalError": 1}


def test_a_load_that_ends_before_the_outage_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        read_load(["--tasks", "459", "--rate", "20"])

    assert "--tasks must be at least 460" in capsys.readouterr().err
    load, release, outages = read_load(["--tasks", "460", "--rate", "20"])
    assert load == Load(tasks=460, rate=20.0, seconds=10.0)
    assert (release, outages) == ("installed", ("killed", "frozen", "restarted", "swapped"))
