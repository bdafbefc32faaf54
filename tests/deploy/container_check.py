"""
Builds the image of Containerfile without Docker and without a registry, and runs it.

    python -m tests.deploy.container_check [run|extras [ARCHIVE]]     as root; some minutes

The base is a root file system that mmdebstrap makes of Debian's packages, and buildah executes the
steps. The image then runs as its user, with a read-only root, and is written to ARCHIVE, for OCI.
"""

import gzip
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final

from gateway import __version__
from gateway.demo.ports import free_port

ROOT: Final = Path(__file__).parents[2]
WORK: Final = ROOT / "build" / "container"
BASE: Final = "localhost/base"
IMAGE: Final = "localhost/pairgate-mq"
SUITE: Final = "bookworm"
USER: Final = "65532"
PAIRGATE: Final = "/opt/pairgate/bin/pairgate"
# The certificate authorities and the settings of apt here: steps reach what this system does.
SHARED: Final = ("/etc/ssl/certs", "/etc/apt/apt.conf.d")
MISSING: Final = ("bin/sh", "usr/bin/apt-get", "usr/bin/cc", "opt/pairgate/bin/pip", "usr/bin/perl")
OF_EXTRAS: Final = ("azure.identity", "fastjsonschema", "opentelemetry.exporter.otlp.proto.http")
CONFIG: Final = """
[namespaces.east]
url = "embedded:/var/lib/pairgate/east.db"
queues = ["orders"]

[namespaces.west]
url = "embedded:/var/lib/pairgate/west.db"

[pairing]
primary = "east"
secondary = "west"
label = "east"
envelope_keys = [{{ id = "1", key = {{ env = "ENVELOPE_KEY" }} }}]
state = "/var/lib/pairgate/state.json"

[[endpoints]]
protocol = "service-bus-http"
bind = "127.0.0.1:{0}"

[[endpoints]]
protocol = "admin"
bind = "127.0.0.1:{1}"
"""
# A container: a network of its own, its root read-only, and two places to write. $2 is a folder of
# settings, or empty for those of the image.
MOUNTS: Final = """
set -e
ip link set lo up
mount --bind "$1" "$1"
test -z "$2" || mount --bind -o ro "$2" "$1/etc/pairgate"
mount -t proc proc "$1/proc"
mount -t tmpfs tmpfs "$1/tmp"
mount -t tmpfs -o mode=0700,uid=65532,gid=65532 tmpfs "$1/var/lib/pairgate"
mount -o remount,ro,bind "$1"
cd "$1"
exec chroot --userspec=65532:65532 "$1" "$3" serve --json --config "/etc/pairgate/$4"
"""


def run(*command: object, **options: Any) -> str:
    """The output of the command, which must succeed."""
    done = subprocess.run(
        [*map(str, command)], stdout=subprocess.PIPE, text=True, check=True, **options
    )
    return done.stdout.strip()


def buildah(*arguments: object) -> str:
    store = ("--storage-driver", "vfs", "--root", WORK / "store", "--runroot", WORK / "run")
    return run("buildah", *store, *arguments)


def make_base() -> None:
    """A minimal Debian as the image `BASE`."""
    archive = WORK / "base.tar"
    if not archive.exists():
        run(
            "mmdebstrap",
            "--quiet",
            "--variant=minbase",
            "--include=ca-certificates",
            SUITE,
            archive,
        )
    container = buildah("from", "scratch")
    buildah("add", "--quiet", container, archive, "/")
    buildah("commit", "--quiet", container, BASE)


def build(commit: str, lock: str) -> Path:
    """Execute the steps of Containerfile with that lock; return the root of the image."""
    shared = [word for folder in SHARED for word in ("--volume", f"{folder}:{folder}:ro")]
    given = {"DEBIAN": BASE, "COMMIT": commit, "LOCK": lock}
    arguments = [word for each in given.items() for word in ("--build-arg", "=".join(each))]
    context = ("--file", ROOT / "Containerfile", "--tag", IMAGE, ROOT)
    buildah("build", "--isolation", "chroot", "--format", "docker", *arguments, *shared, *context)
    return Path(buildah("mount", buildah("from", IMAGE)))


def size_of(root: Path) -> tuple[float, float]:
    """The bytes of the image as an archive, and compressed, in MB."""
    archive = WORK / "image.tar"
    run("tar", "--create", "--file", archive, "--directory", root, ".")
    packed = WORK / "image.tar.gz"
    with archive.open("rb") as plain, gzip.open(packed, "wb", compresslevel=6) as compressed:
        shutil.copyfileobj(plain, compressed)
    return archive.stat().st_size / 1e6, packed.stat().st_size / 1e6


@contextmanager
def running(root: Path, config: str, settings: str = "") -> Iterator[subprocess.Popen[str]]:
    """The image's process, once it has started."""
    (root / "proc").mkdir(exist_ok=True)  # an engine makes it, too
    own = ["unshare", "--mount", "--net", "sh", "-c", MOUNTS, "sh"]
    command = [*own, str(root), settings, PAIRGATE, config]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment()) as process:
        assert process.stderr is not None
        try:
            log = until_started(process.stderr)
            assert log[-1]["event"] == "started", log
            yield process
        finally:
            process.terminate()
            process.stderr.read()


def until_started(lines: IO[str]) -> list[dict[str, Any]]:
    seen = list[dict[str, Any]]()
    for line in lines:
        seen.append(json.loads(line))
        if seen[-1].get("event") == "started":
            break
    return seen


def inside(process: subprocess.Popen[str], *command: str) -> str:
    """The output of a command beside the process, as `docker exec` runs it."""
    target = ("--target", process.pid, "--mount", "--net", "--root", "--wdns=/etc/pairgate")
    user = ("--setuid", USER, "--setgid", USER)
    return run("nsenter", *target, *user, "--", PAIRGATE, *command, env=environment())


def check_served(root: Path, config: str, settings: str = "") -> None:
    """The image serves that file, and its own commands send and receive there."""
    chosen = ("--config", config)
    with running(root, config, settings) as process:
        assert "serving" in inside(process, "status", "--ready", *chosen)
        inside(process, "send", "orders", "hello", *chosen)
        assert "hello" in inside(process, "receive", "orders", *chosen)
    assert process.returncode == 0, process.returncode


def environment() -> dict[str, str]:
    path = f"/opt/pairgate/bin:{os.environ['PATH']}"
    return {"PATH": path, "LANG": "C.UTF-8", "ENVELOPE_KEY": "a key of many bytes, in a test"}


def properties(root: Path) -> Sequence[str]:
    """The settings of the image that matter, checked."""
    settings = json.loads(buildah("inspect", "--type", "image", IMAGE))["Docker"]["config"]
    assert settings["User"] == f"{USER}:{USER}", settings
    assert settings["Entrypoint"] == ["pairgate"], settings
    assert settings["Healthcheck"]["Test"] == ["CMD", "pairgate", "status", "--ready"], settings
    assert [name for name in MISSING if (root / name).exists()] == []
    owned = run("find", root / "opt", root / "usr", "-perm", "/022", "-not", "-type", "l")
    assert owned == "", owned  # the container's user can change no file of the image
    return [f"user {USER}", "no shell, no compiler, no package manager"]


def main() -> None:
    if os.geteuid() != 0:
        sys.exit("container-check mounts file systems: run it as root")
    WORK.mkdir(parents=True, exist_ok=True)
    commit = run("git", "rev-parse", "HEAD", cwd=ROOT)
    make_base()
    lock, archive = [*sys.argv[1:], *("run", "")[len(sys.argv) - 1 :]]
    root = build(commit, lock)
    found = list(properties(root))
    plain, compressed = size_of(root)
    settings = WORK / "settings"
    settings.mkdir(exist_ok=True)
    (settings / "pairgate.toml").write_text(CONFIG.format(free_port(), free_port()))
    check_served(root, "pairgate.toml", str(settings))
    check_served(root, "development.toml")
    found += ["read-only root: served, sent, received, healthy, drained; for development, too"]
    if lock == "extras":
        run("chroot", root, "/opt/pairgate/bin/python", "-c", f"import {', '.join(OF_EXTRAS)}")
        found += [f"with the extras: {', '.join(OF_EXTRAS)}"]
    if archive:
        buildah("push", IMAGE, f"oci-archive:{archive}:{IMAGE.rpartition('/')[2]}:{__version__}")
        found += [f"written: {archive}"]
    found += [f"{plain:.0f} MB, {compressed:.0f} MB compressed"]
    sys.stdout.write("\n".join(found) + "\n")


if __name__ == "__main__":
    main()
