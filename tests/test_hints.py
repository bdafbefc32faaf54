"""A hint's command does what the hint says, and an error names an address once."""

import re
from pathlib import Path

from gateway.demo.ports import free_port
from tests.command_line import PAIR, pairgate
from tests.stores import make_stores


def test_a_missing_queue_is_created_by_the_command_that_is_named(tmp_path: Path) -> None:
    file = tmp_path / "pairgate.toml"
    file.write_text(PAIR)
    make_stores(file)
    sent = pairgate("send", "ordres", "hello", "--config", file)
    named = re.search(r"`pairgate (create queue ordres)`", sent.stderr)

    assert sent.exit_code == 1
    assert named is not None, sent.stderr
    assert pairgate(*named[1].split(), "--config", file).exit_code == 0
    assert pairgate("send", "ordres", "hello", "--config", file).exit_code == 0


def test_an_address_that_refuses_is_named_once() -> None:
    address = f"127.0.0.1:{free_port()}"
    for command in (("status",), ("events",), ("failover", "orders"), ("trigger", "orders")):
        asked = pairgate(*command, "--url", f"http://{address}")

        assert asked.stderr.count(address) == 1, asked.stderr
