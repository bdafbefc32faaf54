"""
Operators read and steer a gateway over a Unix socket: by its file's permissions, without a key.
"""

import json
import tempfile
from pathlib import Path

import pytest

from tests.e2e.commands import ACCESS, admin_of, pairgate
from tests.e2e.processes import Gateways, broker_config

pytestmark = pytest.mark.slow


async def test_a_gateway_is_steered_over_a_unix_socket(gateways: Gateways) -> None:
    with tempfile.TemporaryDirectory(prefix="pg-", dir="/tmp") as folder:
        path = Path(folder) / "admin.sock"
        admin = admin_of("serve").replace("127.0.0.1:0", f"unix:{path}")
        gateway = await gateways.start(broker_config("orders") + admin + ACCESS)
        mode = path.stat().st_mode & 0o777
        code, status, errors = await pairgate(gateway, "status", "--json")
        other = await pairgate(gateway, "events", "--recent=1", f"--url=unix:{path}", "--json")
        triggered = await pairgate(gateway, "trigger", "orders")
        checked = await pairgate(gateway, "check")
        await gateway.kill()
        dead = await pairgate(gateway, "status")
        was_left = path.is_socket()
        await gateway.start()
        again = await pairgate(gateway, "status")
        ended = await gateway.stop()

        assert mode == 0o600
        assert (code, errors) == (0, "")
        assert json.loads(status)["gateway"] == f"unix:{path}"
        assert other[0] == triggered[0] == 0
        assert f"{path} is served by a running process" in checked[1]
        assert (dead[0], was_left, again[0], ended) == (75, True, 0, 0)
        assert not path.exists()
