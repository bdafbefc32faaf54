"""
`make run` and `make test` in a plain Debian, which has Git, make and Python 3.11.2.

    python -m tests.deploy.debian_check [--whole] [TEST...]     as root

Without arguments `make test` runs the tests of `FEW`, which together need everything that it
installs. Each run begins with a new root file system by mmdebstrap and a clone of the commit that
is checked out here. `DEBIAN_MIRROR`, if set, is the mirror. The certificate authorities, and the
settings of apt, pip and npm, are those of the caller. `build/debian` keeps what pip and npm have
downloaded.
"""

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
WORK: Final = ROOT / "build" / "debian"
SUITE: Final = "bookworm"
PACKAGES: Final = "ca-certificates,git,make,python3,python3-venv"
# The parts of `make test` that each needs.
FEW: Final[Mapping[str, str]] = {
    ".venv": "tests/test_cli.py",
    ".venv-azure": "tests/e2e/test_azure_client.py",
    ".venv-legacy": "tests/e2e/test_legacy_client.py",
    ".venv-openapi": "tests/e2e/test_openapi.py",
    ".venv-docs": "tests/test_site.py",
    ".venv-kubernetes": "tests/deploy",
    ".node": "tests/e2e/test_storage_clients.py",
    ".rabbitmq-4": "tests/brokers/amqp/test_rabbitmq_4.py",
    "Proton": "tests/e2e/test_proton_client.py",
    "chromium": "tests/frontends/admin/test_page_in_browser.py",
    "beanstalkd": "tests/examples/test_beanstalkd.py",
    "curl": "tests/e2e/test_token.py",
    "libfaketime": "tests/e2e/test_faults_host.py",
    "libnginx-mod-stream": "tests/e2e/test_balancer.py",
    "nginx-light": "tests/e2e/test_balancer.py",
    "prometheus": "tests/telemetry/test_metrics.py",
    "rabbitmq-server": "tests/e2e/test_rabbitmq_mixed.py",
    "strace": "tests/harness/test_syscalls.py",
    "systemd": "tests/config/test_shipped.py",
}
FEW_TESTS: Final = tuple(dict.fromkeys(FEW.values()))
HOME: Final = "/root"
SOURCE: Final = f"{HOME}/pairgate"
# Read there by the same path; each only if the caller's system has it.
SHARED: Final = (
    *("/etc/ssl/certs", "/etc/apt/apt.conf.d", "/etc/resolv.conf", "/etc/hosts"),
    *("/etc/pip.conf", "/etc/xdg/pip"),
)
SETTINGS: Final = (".config/pip", ".npmrc")  # of the caller's home folder
CACHES: Final = (".cache/pip", ".npm")
# Mounts `FROM TO ro|rw` each, and runs the command after `--`. Mounts and processes end with it.
INSIDE: Final = """
set -e
root=$1
shift
mount --bind "$root" "$root"
while [ "$1" != -- ]; do
    mkdir -p "$root$(dirname "$2")"
    if [ -d "$1" ]; then mkdir -p "$root$2"; else touch "$root$2"; fi
    mount --bind -o "$3" "$1" "$root$2"
    shift 3
done
shift
mount -t proc proc "$root/proc"
mount -t sysfs sysfs "$root/sys"
mount --rbind /dev "$root/dev"
mount -t tmpfs tmpfs "$root/run"
chroot "$root" sh -ec "$@"
"""


def make_root() -> Path:
    """A Debian with Git, make and Python, and a clone of this repository as it is committed."""
    root, archive = WORK / "root", WORK / "base.tar"
    WORK.mkdir(parents=True, exist_ok=True)
    if not archive.exists():
        options = ("--quiet", "--variant=minbase", f"--include={PACKAGES}")
        mirror = filter(None, [os.environ.get("DEBIAN_MIRROR")])
        made = WORK / "unfinished.tar"
        subprocess.run(["mmdebstrap", *options, SUITE, str(made), *mirror], check=True)
        made.rename(archive)
    if root.exists():
        shutil.rmtree(root)
    root.mkdir()
    # Devices come from the system that runs.
    unpack = ["tar", "--extract", "--file", str(archive), "--exclude", "./dev/*"]
    subprocess.run([*unpack, "--directory", str(root)], check=True)
    clone = f"{root}{SOURCE}"
    subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", str(ROOT), clone], check=True)
    for step in (("fetch", "--quiet", str(ROOT), "HEAD"), ("checkout", "--quiet", "FETCH_HEAD")):
        subprocess.run(["git", "-C", clone, *step], check=True)
    return root


def mounts() -> Sequence[tuple[str, str, str]]:
    """Return the mounts: each as its source, its target, and "ro" or "rw"."""
    home, caches = Path.home(), WORK / "cache"
    found = [(path, path, "ro") for path in SHARED]
    found += [(str(home / name), f"{HOME}/{name}", "ro") for name in SETTINGS]
    for name in CACHES:
        (caches / name).mkdir(parents=True, exist_ok=True)
        found.append((str(caches / name), f"{HOME}/{name}", "rw"))
    return [each for each in found if Path(each[0]).exists()]


def main() -> int:
    parser = argparse.ArgumentParser(description="make run and make test in a plain Debian.")
    parser.add_argument("--whole", action="store_true", help="run all tests")
    parser.add_argument("tests", nargs="*", help=f"instead of: {' '.join(FEW_TESTS)}")
    given = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("debian-check makes a root file system: run it as root")
    root = make_root()
    tests = [] if given.whole else given.tests or FEW_TESTS
    flat = [word for each in mounts() for word in each]
    command = f"cd {SOURCE}; make run; make test; echo 'make run and make test: done'"
    alone = ("unshare", "--mount", "--pid", "--fork", "--kill-child")
    environment = {
        **os.environ,
        "HOME": HOME,
        "LANG": "C.UTF-8",
        "PYTEST_ADDOPTS": " ".join(tests),
    }
    done = subprocess.run(
        [*alone, "sh", "-c", INSIDE, "sh", str(root), *flat, "--", command],
        env=environment,
        check=False,
    )
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
