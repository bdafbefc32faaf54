"""Opens the services of extensions for the life of a process."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

from gateway.config.options import Config
from gateway.extensions.listing import extensions
from gateway.ports import Observer, Service


@contextmanager
def open_extensions(config: Config, observer: Observer) -> Iterator[Mapping[str, Service]]:
    """The services that extensions open for this process, by the extension's name."""
    with ExitStack() as stack:
        opened: dict[str, Service] = {}
        for extension in extensions():
            for open_service in extension.load("processes"):
                service = stack.enter_context(open_service(config, observer))
                if service is not None:
                    opened[extension.name] = service
        yield opened
