"""Queues that require sessions and aren't `ordered` are named by `check` and by the status."""

import json
from pathlib import Path

import pytest

from gateway.domain.entity import EntityPath, QueueProperties
from gateway.extensions.order.sessions import UNORDERED, UnorderedQueue
from gateway.pairing.pair import Pair
from tests.command_line import PAIR, pairgate
from tests.pairing.harness import Harness, message, virtual_time
from tests.stores import make_stores

JOBS = EntityPath("jobs")


def named(pair: Pair) -> tuple[UnorderedQueue, ...]:
    [value] = [each.sections[UNORDERED]() for each in pair.additions if UNORDERED in each.sections]
    return tuple(value)


@virtual_time
@pytest.mark.parametrize("ordered", [True])  # the secondary has sessions
@pytest.mark.parametrize(("patterns", "names"), [((), ["jobs"]), (("jo*",), [])])
async def test_the_status_names_a_queue_once_the_primary_has_described_it(
    harness: Harness, ordered: bool, patterns: tuple[str, ...], names: list[str]
) -> None:
    await harness.primary.store.create_queue(JOBS, QueueProperties(requires_session=True))
    pair = await harness.pair(ordered=patterns)
    before = named(pair)
    await pair.broker.send_diverting(JOBS, [message("one", session_id="s")])
    cache = pair.entity_cache
    while (known := cache.of(JOBS)) is None or known.requires_session is None:
        await cache.changes.wait_next()

    assert before == ()
    assert [each.queue for each in named(pair)] == names


def test_the_line_of_many_queues_is_short() -> None:
    queues = tuple(UnorderedQueue(queue=f"jobs-{number}") for number in range(7))

    [line] = UNORDERED.lines(queues)

    assert line == (
        "order    jobs-0, jobs-1, jobs-2, jobs-3, jobs-4 and 2 more require sessions and aren't in"
        " `ordered` of [pairing]: an outage breaks the order of sessions there"
    )


@pytest.mark.parametrize(("ordered", "names"), [('"orders"', ["jobs"]), ('"orders", "JOBS"', [])])
def test_check_names_each_queue_of_the_primary(
    ordered: str, names: list[str], tmp_path: Path
) -> None:
    file = tmp_path / "pairgate.toml"
    file.write_text(f"{PAIR}ordered = [{ordered}]\n")
    make_stores(file)
    for queue in ("orders-too", "jobs"):
        options = ["--sessions"] if queue == "jobs" else []
        assert pairgate("create", "queue", queue, *options, "--config", file).exit_code == 0

    checked = pairgate("check", "--config", file, "--json")

    texts = [each["text"] for each in json.loads(checked.stdout)["findings"]]
    found = [text.partition(" requires")[0] for text in texts if "requires sessions and" in text]
    assert found == names
