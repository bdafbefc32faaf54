"""Parts of the tests of take over that other tests need, too."""

import shlex

from tests.e2e.processes import (
    GatewayProcess,
    Gateways,
)
from tests.pages import blocks

[TAKE_OVER] = blocks("docs/how-to/run/restart-and-upgrade.md", "toml")
# The other block runs tests/e2e/test_rolling_upgrade.py with an earlier revision.
COMMAND_BLOCK, _ = blocks("docs/how-to/run/restart-and-upgrade.md", "sh")
COMMAND = shlex.split(COMMAND_BLOCK)[1:]


def successor(gateways: Gateways, before: GatewayProcess, config: str = "") -> GatewayProcess:
    """A process in the same folder that takes over; not started yet."""
    return gateways.prepare(config or before.config, name=before.folder.name, command=COMMAND)
