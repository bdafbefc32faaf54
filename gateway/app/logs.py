"""The log, set up as configured, and its reload at SIGHUP."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import attrs
import trio

from gateway.app.runtime import Runtime, Silence
from gateway.config.errors import ConfigError
from gateway.config.file import Loaded
from gateway.config.options import Config
from gateway.domain.errors import starting_thread
from gateway.domain.events.gateway import Doubtful, LogLinesDropped, Reloaded, Stopped
from gateway.domain.option_fields import is_flat
from gateway.extensions.listing import parts
from gateway.extensions.tables import tables
from gateway.telemetry.log import LineWriter, LogObserver
from gateway.telemetry.service_manager import ServiceManager

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
    writer = LineWriter(
        fd,
        lambda lines: log.line_of(LogLinesDropped(lines=lines)),
        tell=lambda: log.flush_counted(),
    )
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


@attrs.frozen(kw_only=True)
class Reloading:
    """The result of a reload. With `problems`, nothing was changed."""

    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    needs_restart: tuple[str, ...] = ()  # sections that differ from those at the start
    applied: tuple[str, ...] = ()  # sections of which something took effect now

    @property
    def changed(self) -> bool:
        """True if anything took effect now."""
        return bool(self.applied)


@attrs.define(eq=False)
class Reloader:
    """
    Reads the configuration again, for SIGHUP and for operators. An invalid file changes nothing.

    It applies the log level and, by a callback, the access policies, issuers, accounts, envelope
    keys and shards; other changes need a restart.
    """

    loaded: Loaded  # at the start
    log: LogObserver
    load: Callable[[], Loaded]  # may raise ConfigError
    service_manager: ServiceManager = attrs.field(factory=lambda: ServiceManager(Silence()))
    _turn: trio.Lock = attrs.field(factory=trio.Lock, init=False)
    # The configuration in effect, as far as it is reloaded.
    current: Loaded = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.current = self.loaded

    async def __call__(self, apply: Callable[[Loaded], None]) -> Reloading:
        """
        Call `apply` with the new configuration, unless it is invalid; report the result. One reload
        waits for another. If cancelled, it changes nothing.
        """
        async with self._turn:
            with self.service_manager.reloading():
                return await self._reload(apply)

    async def _reload(self, apply: Callable[[Loaded], None]) -> Reloading:
        try:
            # In a thread, since a command that prints a secret may take its time.
            with starting_thread():
                fresh = await trio.to_thread.run_sync(self.load, abandon_on_cancel=True)
        except ConfigError as error:
            self.log.report(Doubtful(text=f"not reloaded: {error}"))
            return Reloading(problems=tuple(error.problems))
        except OSError as error:
            self.log.report(Doubtful(text=f"not reloaded: {error}"))
            return Reloading(problems=(str(error),))
        self.log.level = fresh.config.logging.level
        apply(fresh)
        needs_restart = tuple(_changed(self.loaded.config, fresh.config))
        before, self.current = self.current.config, fresh
        self.log.report(
            Reloaded(
                configuration=fresh.source,
                log_level=self.log.level,
                access=", ".join(policy.name for policy in fresh.config.access),
                needs_restart=", ".join(needs_restart),
                envelope_keys=_key_ids(fresh.config),
            )
        )
        for warning in fresh.warnings:
            self.log.report(Doubtful(text=warning))
        return Reloading(
            warnings=fresh.warnings,
            needs_restart=needs_restart,
            applied=tuple(_differing(before, _reloaded(before, fresh.config))),
        )


def _reloaded(before: Config, after: Config) -> Config:
    """The configuration `before` with the parts of `after` that a reload applies."""
    logging = attrs.evolve(before.logging, level=after.logging.level)
    before = attrs.evolve(
        before,
        logging=logging,
        issuers=after.issuers,
        access=after.access,
        accounts=after.accounts,
    )
    for reload in parts("reloads"):
        before = reload(before, after)
    old, new = before.pairing, after.pairing
    if old is None or new is None:
        return before
    # Without configured keys, the keys in use stay.
    keys = new.envelope_keys or old.envelope_keys
    return attrs.evolve(before, pairing=attrs.evolve(old, envelope_keys=keys, encrypt=new.encrypt))


def _key_ids(config: Config) -> str:
    keys = () if config.pairing is None else config.pairing.envelope_keys
    return ", ".join(key.id for key in keys)


def _changed(before: Config, after: Config) -> list[str]:
    """The sections that differ, except for the parts that are reloaded."""
    return _differing(_reloaded(before, after), after)


def _differing(before: Config, after: Config) -> list[str]:
    """The sections that differ."""
    names = [field.name for field in attrs.fields(Config) if not is_flat(field)]
    changed = [name for name in names if getattr(before, name) != getattr(after, name)]
    return changed + [
        each.name for each in tables(Config.point) if before.of(each) != after.of(each)
    ]
