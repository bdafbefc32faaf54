"""Parts of the tests of shipped that other tests need, too."""

import re
from pathlib import Path

from gateway.config.file import Loaded, parse

CONF = Path(__file__).parents[2] / "conf"
EVERY_OPTION = (CONF / "pairgate.toml").read_text()
COMMENTED_OUT = re.compile(r"^# (?=\[|\w+ = )", re.MULTILINE)
SECRETS = (
    "NORTH_KEY",
    "SOUTH_KEY",
    "ENVELOPE_KEY",
    "ORDERS_KEY",
    "ORDERS_KEY_2",
    "OPERATOR_KEY",
    "PRODUCER_KEY",
    "RABBIT_PASSWORD",
    "RABBIT_NORTH_PASSWORD",
    "RABBIT_SOUTH_PASSWORD",
    "ARTEMIS_PASSWORD",
    "ENTRA_SECRET",
)
SECRET_FILE = re.compile(r'file = "(secrets/[\w-]+)"')
CONNECTION = "Endpoint=sb://contoso-south.example.net/;SharedAccessKeyName=a;SharedAccessKey=k"
IN_BASE64 = ("CONTOSO_KEY", "CONTOSO_KEY_2", "STORAGE_NORTH_KEY", "STORAGE_SOUTH_KEY")
STORAGE_CONNECTION = "AccountName=contoso;AccountKey=YSBzZWNyZXQ="


def read(text: str, folder: Path) -> Loaded:
    for name in SECRET_FILE.findall(text):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(f"the secret of sixteen bytes in {name}")
        (folder / name).chmod(0o600)
    environ = dict.fromkeys(SECRETS, "a secret of sixteen bytes")
    environ |= {"CONNECTION": CONNECTION, "SOUTH_CONNECTION": CONNECTION}
    environ["STORAGE"] = "AccountName=contoso;AccountKey=YQ=="
    environ |= {
        "STORAGE_CONNECTION": STORAGE_CONNECTION,
        "STORAGE_CONNECTION_2": STORAGE_CONNECTION,
    }
    environ["CLUSTER_SECRET"] = "a secret of at least thirty-two bytes"
    environ |= dict.fromkeys(IN_BASE64, "YSBzZWNyZXQgb2Ygc2l4dGVlbiBieXRlcw==")
    return parse(text, source="conf", folder=folder, environ=environ)
