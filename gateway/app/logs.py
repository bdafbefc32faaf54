"""The log, set up as configured, and its reload at SIGHUP."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import attrs

from gateway.app.runtime import Runtime
from gateway.config.file import Loaded
from gateway.config.options import Config
from gateway.config.problems import ConfigError
from gateway.domain.events.gateway import Doubtful, LogLinesDropped, Reloaded, Stopped
from gateway.telemetry.log import LogObserver
from gateway.telemetry.writer import LineWriter

LAST_LINES_SECONDS: Final = 2.0


@contextmanager
def open_log(
    loaded: Loaded, fd: int, *, as_json: bool, worker: int | None = None
) -> Iterator[LogObserver]:
    """
    The log of a process, for the life of the context; `as_json` overrides the configuration.
    `worker` is the number of a worker, which its lines have.

    Its last line is `stopped`, unless the context ends by an exception.
    """
    logging = loaded.config.logging
    as_json = as_json or logging.format == "json"
    as_json = as_json or (logging.format == "auto" and not os.isatty(fd))
    writer = LineWriter(fd, lambda lines: log.line_of(LogLinesDropped(lines=lines)))
    log = LogObserver(
        writer.write,
        as_json=as_json,
        level=logging.level,
        clock=Runtime.now,
        repeat_interval=logging.repeat_interval,
        colors=os.isatty(fd),
    )
    if worker is not None:
        log.labels = {"worker": worker}
    try:
        yield log
        log.report(Stopped())
    finally:
        log.close()
        writer.close(LAST_LINES_SECONDS)


Reload = Callable[[Callable[[Loaded], None]], None]
"""Reads the configuration again and calls back with it, unless it is invalid."""


def reloader(loaded: Loaded, log: LogObserver, load: Callable[[], Loaded]) -> Reload:
    """
    The action of SIGHUP: read the file again; apply the log level and, by the callback, the access
    policies; and report the sections whose changes need a restart.

    An invalid file changes nothing.
    """

    def reload(apply: Callable[[Loaded], None]) -> None:
        try:
            fresh = load()
        except ConfigError as error:
            log.report(Doubtful(text=f"not reloaded: {error}"))
            return
        log.level = fresh.config.logging.level
        apply(fresh)
        log.report(
            Reloaded(
                configuration=fresh.source,
                log_level=log.level,
                access=", ".join(policy.name for policy in fresh.config.access),
                needs_restart=", ".join(_changed(loaded.config, fresh.config)),
            )
        )
        for warning in fresh.warnings:
            log.report(Doubtful(text=warning))

    return reload


def _changed(before: Config, after: Config) -> list[str]:
    """The sections that differ, except for the parts that are reloaded."""
    logging = attrs.evolve(before.logging, level=after.logging.level)
    before = attrs.evolve(before, logging=logging, access=after.access)
    names = [field.name for field in attrs.fields(Config)]
    return [name for name in names if getattr(before, name) != getattr(after, name)]
