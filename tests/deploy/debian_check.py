"""
`make run` and `make test` in a plain Debian, which has Git, make and Python 3.11.2.

    python -m tests.deploy.debian_check     as root; half an hour, with PYTEST_ADDOPTS less

mmdebstrap makes the root file system, and the commit that is checked out here is cloned into it.
The certificate authorities, and the settings of apt, pip and npm, are those of this system. What
the Makefile installs stays in `build/debian`, so that another run takes less time.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
WORK: Final = ROOT / "build" / "debian"
SUITE: Final = "bookworm"
PACKAGES: Final = "ca-certificates,git,make,python3,python3-venv"
# Read here and there; each only if this system has it.
SHARED: Final = (
    *("/etc/ssl/certs", "/etc/apt/apt.conf.d", "/etc/resolv.conf", "/etc/hosts"),
    "/etc/pip.conf",
    *(str(Path.home() / name) for name in (".config/pip/pip.conf", ".npmrc")),
)
SOURCE: Final = "/src/pairgate"
# The mounts end with the process, in a namespace of its own.
INSIDE: Final = """
set -e
root=$1 source=$2
shift 2
mount --bind "$root" "$root"
for path in "$@"; do
    [ -e "$path" ] || continue
    mkdir -p "$root$(dirname "$path")"
    if [ -d "$path" ]; then mkdir -p "$root$path"; else touch "$root$path"; fi
    mount --bind -o ro "$path" "$root$path"
done
mount -t proc proc "$root/proc"
mount -t sysfs sysfs "$root/sys"
mount --rbind /dev "$root/dev"
mount -t tmpfs tmpfs "$root/run"
exec chroot "$root" sh -c "cd $source && make run && make test"
"""


def make_root() -> None:
    """A Debian with Git, make and Python, and a clone of this repository as it is committed."""
    if not (WORK / "usr").exists():
        WORK.mkdir(parents=True, exist_ok=True)
        command = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={PACKAGES}"]
        subprocess.run([*command, SUITE, str(WORK)], check=True)
    clone = Path(f"{WORK}{SOURCE}")
    if not clone.exists():
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    commit = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
    head = subprocess.run(commit, check=True, capture_output=True, text=True).stdout.strip()
    there = ["git", "-C", str(clone)]
    subprocess.run([*there, "fetch", "--quiet", str(ROOT), head], check=True)
    subprocess.run([*there, "checkout", "--quiet", "--force", head], check=True)


def main() -> None:
    if os.geteuid() != 0:
        sys.exit("debian-check makes a root file system: run it as root")
    make_root()
    command = ["unshare", "--mount", "sh", "-c", INSIDE, "sh", str(WORK), SOURCE, *SHARED]
    environment = {**os.environ, "HOME": "/root", "LANG": "C.UTF-8"}
    sys.exit(subprocess.run(command, env=environment, check=False).returncode)


if __name__ == "__main__":
    main()
