"""
The core works without each extension, and without them all: neither their folders nor their lines
in the list are there.
"""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest
import trio

from gateway.extensions.extension import Extension
from gateway.extensions.listing import EXTENSIONS
from tests.e2e.backlog_home import bring_home
from tests.e2e.processes import environment, open_gateways
from tests.harness import without
from tests.harness.fork_server import ForkServer
from tests.harness.known import known
from tests.harness.without import copy_without, run_tests, variables_of

END_LIMIT: Final = 30.0  # seconds until a fork server has ended
# The assembly of each process, by the list: a pair, a restart, a syphon.
PROCESSES: Final = (
    "tests/e2e/test_serve.py::test_the_embedded_default_is_a_pair_that_serves",
    "tests/e2e/test_serve.py::test_a_killed_broker_has_what_it_acknowledged",
    "tests/e2e/test_serve.py::test_a_syphon_of_its_own_moves_the_backlog",
)
# An outage, the spool, and each protocol; their modules import no extension.
PARTS: Final = (
    "tests/app/test_spooling.py",
    "tests/pairing/test_broker.py",
    "tests/pairing/test_state_file.py",
    "tests/pairing/syphon/test_drain.py",
    "tests/frontends/amqp/test_outgoing.py",
    "tests/frontends/servicebus/test_rest_receive.py",
    "tests/frontends/storage_queue/test_doubtful_settlements.py",
)


# The words that users know of each extension: its options, and the events of its log lines.
WORDS: Final[Mapping[str, Mapping[str, set[str]]]] = {
    "announcements": {
        "options": {"triggers"},
        "events": {"triggers_lost", "triggers_regained", "triggers_delayed"},
    },
    "claims": {
        "options": {"claims", "packing"},
        "events": {
            "claim_backing_off",
            "claim_collection_failed",
            "claim_copy_dropped",
            "claim_left_behind",
            "claim_lost",
            "claims_collected",
        },
    },
    "cluster": {
        "options": {"cluster"},
        "events": {"peer_found", "peer_lost", "peer_refused"},
    },
    "drill": {"options": {"drill"}, "events": {"drill_began", "drill_ended"}},
    "faults": {"options": {"faults"}, "events": {"fault_added", "fault_over"}},
    "hedging": {
        "options": {"entities.hedge_after", "pairing.hedge_after", "pairing.hedge_budget"},
        "events": set(),
    },
    "ledger": {"options": {"ledger"}, "events": {"ledger_not_saved"}},
    "move": {"options": {"move"}, "events": {"entity_moved"}},
    "order": {
        "options": {"pairing.on_lease_lost", "pairing.order_lease", "pairing.ordered"},
        "events": {"order_lease_lost", "order_lease_taken"},
    },
    "entity_memory": {"options": set(), "events": set()},
    "outage_report": {"options": set(), "events": {"outage_over"}},
    "purge": {"options": set(), "events": {"backlog_purged"}},
    "receive_in_outage": {
        "options": {"pairing.receive_in_outage"},
        "events": {"backlog_not_received"},
    },
    "redrive": {"options": set(), "events": {"dead_letters_redriven"}},
    "sharding": {"options": {"sharding"}, "events": {"shard_added", "shard_drained"}},
    "sidecar": {"options": set(), "events": set()},
    "take_over": {
        "options": {"serve --take-over", "take_over"},
        "events": {"take_over_failed", "taken_over"},
    },
    "traces": {"options": {"traces"}, "events": {"traces_not_exported"}},
    "workers": {"options": {"workers"}, "events": {"worker_lost", "worker_started"}},
}


@asynccontextmanager
async def forks_without(extension: Extension, folder: Path) -> AsyncIterator[ForkServer]:
    """A fork server of the package without the extension; it has imported all that is left."""
    copy_without([extension], folder)
    server = ForkServer.start({**environment(), **variables_of([extension], folder)})
    try:
        yield server
    finally:
        with trio.move_on_after(END_LIMIT, shield=True):
            await trio.to_thread.run_sync(server.end)


@pytest.mark.slow
@pytest.mark.parametrize("extension", EXTENSIONS, ids=lambda each: each.name)
async def test_the_core_works_without_an_extension_which_alone_knows_its_options_and_events(
    extension: Extension, tmp_path: Path
) -> None:
    async with forks_without(extension, tmp_path) as server:
        async with open_gateways(tmp_path / "processes", lambda: server) as gateways:
            await bring_home(gateways)
        asked = await server.run(tmp_path, [], module=without.__name__)

    assert asked.returncode == 0, asked.stderr
    knows = json.loads(asked.stdout)
    gone = {kind: set(names) - set(knows[kind]) for kind, names in known().items()}
    inner = {path for path in gone["options"] if path.rpartition(".")[0] in gone["options"]}
    assert {"options": gone["options"] - inner, "events": gone["events"]} == WORDS[extension.name]


@pytest.mark.slow
def test_the_core_works_without_any_extension(tmp_path: Path) -> None:
    copy_without(EXTENSIONS, tmp_path)

    ran = run_tests(EXTENSIONS, tmp_path, (*PARTS, *PROCESSES))

    assert ran.code == 0, ran.output
    assert all(set(ran.known[kind]) < set(names) for kind, names in known().items())


def test_each_extension_has_a_page_that_names_its_modules() -> None:
    folder = Path(__file__).parents[1] / "gateway" / "extensions"
    missing = [
        f"{each.name}: {path.name}"
        for each in EXTENSIONS
        for page in [folder / each.name / "README.md"]
        for path in sorted((folder / each.name).glob("[!_]*.py"))
        if not page.exists() or f"`{path.name}`" not in page.read_text()
    ]

    assert missing == []
