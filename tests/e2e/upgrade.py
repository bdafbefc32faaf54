"""Parts of the tests of upgrade that other tests need, too."""

import lzma
from pathlib import Path

from tests.e2e.processes import ENVELOPE_VARIABLE, KEY_VARIABLE

# With which the messages of the backlog were signed.
KEYS = {ENVELOPE_VARIABLE: "an envelope key for tests only"}
LEFT = Path(__file__).with_name("version_1")


def config_of(primary: str) -> str:
    return f"""
logging = {{ level = "debug" }}

[namespaces.north]
url = "servicebus+http://RootManageSharedAccessKey@{primary}"
key = {{ env = "{KEY_VARIABLE}" }}

[namespaces.south]
url = "embedded:south.db"

[pairing]
primary = "north"
secondary = "south"
label = "north"
backlog_queues = 2
enable_syphon = true
failover_interval = "1s"
ping_interval = "1s"
state = "state.json"
envelope_keys = [{{ id = "test", key = {{ env = "{ENVELOPE_VARIABLE}" }} }}]

[[endpoints]]
protocol = "service-bus-http"
bind = "127.0.0.1:0"
"""


def unpack(name: str, folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / name).write_bytes(lzma.decompress((LEFT / f"{name}.xz").read_bytes()))
