"""Gateways of this checkout for the families, each with new stores and a certificate."""

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from string import Template
from typing import Final

import attrs

from gateway.demo.ports import free_port
from tests.harness.certificates import Authority

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parent.parent
BUILD: Final = ROOT / "build" / "interop"
KEY: Final = "SAS_KEY_VALUE"
HOST: Final = "fakeresource.servicebus.windows.net"


@attrs.define(eq=False)
class Gateway:
    """
    A process, its first port, and its folder: `log`, the configuration, the certificate. It may be
    killed and started again; the stores stay.
    """

    folder: Path
    port: int
    process: "subprocess.Popen[bytes]" = attrs.field(init=False)

    @property
    def authority(self) -> Path:
        """The certificate that clients must trust."""
        return self.folder / "tests-ca.pem"

    def start(self) -> None:
        """Return when the first port accepts connections."""
        keys = {"INTEROP_KEY": KEY, "INTEROP_OTHER_KEY": "another"}
        with (self.folder / "log").open("a") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "gateway", "serve", "--config", "pairgate.toml"],
                env={**os.environ, **keys, "PYTHONPATH": str(ROOT)},
                stdout=log,
                stderr=log,
                cwd=self.folder,
            )
        while self.process.poll() is None:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.1)
        sys.exit(f"the gateway has ended: {self.folder / 'log'}")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait()


@contextmanager
def gateway(
    template: str = "gateway.toml",
    *,
    name: str = "gateway",
    hosts: Sequence[str] = (HOST,),
    files: Mapping[str, bytes] | None = None,
    **values: object,
) -> Iterator[Gateway]:
    """
    A gateway by that template of this folder, whose `$port` and `$NAME` are filled in. `files` are
    put beside its configuration. It ends with the block; if it has ended before, the run fails.
    """
    folder, port = BUILD / name, free_port()
    shutil.rmtree(folder, ignore_errors=True)
    Authority(folder).issue("server", hosts=hosts)
    text = Template((HERE / template).read_text()).substitute(values, port=port)
    (folder / "pairgate.toml").write_text(text)
    for file, content in (files or {}).items():
        (folder / file).write_bytes(content)
    started = Gateway(folder, port)
    started.start()
    try:
        yield started
        if started.process.poll() is not None:
            sys.exit(f"the gateway has ended: {folder / 'log'}")
    finally:
        started.stop()
