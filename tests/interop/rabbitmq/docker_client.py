"""
Stands in for aio-pika's client of Docker, which starts a broker for its tests: here one runs
already, at `INTEROP_PORT`.
"""

import os
from typing import Any

import attrs


class DockerNotAvailableError(Exception):
    """Never raised."""


@attrs.frozen
class DockerHostInfo:
    pass


@attrs.frozen
class ContainerInfo:
    id: str
    ports: dict[str, int]
    host: str


def check_docker_available() -> DockerHostInfo:
    return DockerHostInfo()


@attrs.frozen
class DockerClient:
    host: DockerHostInfo

    def run(self, *_: Any, **__: Any) -> ContainerInfo:
        port = os.environ["INTEROP_PORT"]  # in the tests, too, it is instead of the usual one
        return ContainerInfo("broker", {f"{port}/tcp": int(port)}, "127.0.0.1")

    def kill(self, _: str) -> None:
        pass

    def remove(self, _: str) -> None:
        pass
