"""Watches the files of certificates: reports changed ones, and certificates that expire soon."""

from collections.abc import Iterator
from typing import Final

import attrs
import trio

from gateway.config.options import Config
from gateway.domain.events.access import (
    CertificateExpires,
    CertificatesLoaded,
    CertificatesRefused,
)
from gateway.domain.health.expiry import Expiry, Urgency, urgency_of
from gateway.net.certificates import AUTHORITIES, REVOKED, CertificateName, name_in
from gateway.net.tls import (
    AnyTlsOptions,
    ClientTlsOptions,
    FileContext,
    TlsFileError,
    TlsOptions,
    client_context,
    files_of,
    server_context,
)
from gateway.ports import Observer, WallClock

LOOK_EVERY: Final = 5.0  # seconds
_TOLD: Final = ("certificate", *sorted(AUTHORITIES), REVOKED)  # the files that have an end
_DAY: Final = 86400.0


@attrs.define(eq=False)
class _TlsFiles:
    """The files of one `tls` table."""

    setting: str
    context: FileContext
    loads: int = 1  # `context.loads` at the last report
    # The problem that the last look found, and that is reported if the next look finds it too:
    # another program may be writing the files.
    doubt: TlsFileError | None = None
    told: TlsFileError | None = None
    names: dict[str, CertificateName] = attrs.field(factory=dict)

    def read(self) -> None:
        """Note the names of the certificates that the files have now."""
        files = files_of(self.context.made_of)
        names = {field: name_in(files[field], field) for field in _TOLD if field in files}
        self.names = {field: name for field, name in names.items() if name is not None}

    @property
    def refused(self) -> str:
        return "" if self.told is None else str(self.told)


@attrs.define(eq=False)
class CertificateWatch:
    """
    Watches the files of the certificates of namespaces, and of the endpoints of one process.

    A TLS context reads changed files by itself, at its next handshake. The watch reads them too, so
    that changes, mistakes and coming ends are reported without a handshake.
    """

    _clock: WallClock
    _observer: Observer
    _watched: list[_TlsFiles] = attrs.field(factory=list, init=False)
    _warned: dict[tuple[str, CertificateName], Urgency] = attrs.field(factory=dict, init=False)

    @classmethod
    def of(
        cls, config: Config, process: str, clock: WallClock, observer: Observer
    ) -> "CertificateWatch":
        """
        The watch for such a process, which has loaded the files already. Nothing is reported yet.
        """
        watch = cls(clock, observer)
        for setting, of_endpoint in _of_endpoints(config, process):
            watch.add(setting, of_endpoint)
        for setting, of_namespace in _of_namespaces(config):
            watch.add(setting, of_namespace)
        return watch

    def add(self, setting: str, options: AnyTlsOptions) -> None:
        """Watch the files of one more table. A table that names no file is ignored."""
        if not files_of(options):
            return
        try:
            context = _context(options)
        except TlsFileError:  # the file has changed since the process loaded it
            return
        watched = _TlsFiles(f"{setting}.tls", context)
        watched.read()
        self._watched.append(watched)

    def expiries(self) -> tuple[Expiry, ...]:
        """
        The expiries of the certificates in use. A chain expires with its first certificate, a list
        of authorities with its last.
        """
        now = self._clock()
        return tuple(
            Expiry(
                setting=f"{watched.setting}.{field}",
                file=str(files_of(watched.context.made_of)[field]),
                at=name.expires,
                certificate=name.short,
                urgency=urgency_of(name.starts, name.expires, now),
                refused=watched.refused,
            )
            for watched in self._watched
            for field, name in watched.names.items()
        )

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Look at the files every five seconds until cancelled. Without files, return at once."""
        self._warn()
        task_status.started()
        while self._watched:
            await trio.sleep(LOOK_EVERY)
            self.check()

    def check(self, *, is_final: bool = False) -> None:
        """
        Check the files now. `is_final`: no other program writes them any more, so that unusable
        files are reported at the first check.
        """
        for watched in self._watched:
            self._check(watched, is_final=is_final)
        self._warn()

    def _check(self, watched: _TlsFiles, *, is_final: bool) -> None:
        context = watched.context
        context.refresh()
        problem = context.problem
        if problem is None:
            watched.doubt = watched.told = None
        elif (problem is watched.doubt or is_final) and problem is not watched.told:
            watched.told = problem
            setting = f"{watched.setting}.{problem.field}"
            self._observer.report(CertificatesRefused(setting=setting, reason=str(problem)))
        watched.doubt = problem
        if context.loads != watched.loads:
            watched.loads = context.loads
            watched.read()
            named = next(iter(watched.names.values()), None)
            self._observer.report(
                CertificatesLoaded(setting=watched.setting, certificate=str(named or ""))
            )

    def _warn(self) -> None:
        """Report each expiry 30 and 7 days before it, and when it has passed (`urgency_of`)."""
        now, current = self._clock(), dict[tuple[str, CertificateName], Urgency]()
        for watched in self._watched:
            for field, name in watched.names.items():
                setting = f"{watched.setting}.{field}"
                urgency = urgency_of(name.starts, name.expires, now)
                current[setting, name] = urgency
                if urgency > self._warned.get((setting, name), Urgency.NONE):
                    days = max(0.0, (name.expires - now).total_seconds() / _DAY)
                    file = str(files_of(watched.context.made_of)[field])
                    self._observer.report(
                        CertificateExpires(
                            setting=setting, file=file, certificate=str(name), days=days
                        )
                    )
        self._warned = current


def _context(options: AnyTlsOptions) -> FileContext:
    return server_context(options) if isinstance(options, TlsOptions) else client_context(options)


def _of_endpoints(config: Config, process: str) -> Iterator[tuple[str, TlsOptions]]:
    for index, endpoint in config.endpoints_of(process).items():
        if endpoint.tls is not None:
            yield f"endpoints[{index}]", endpoint.tls


def _of_namespaces(config: Config) -> Iterator[tuple[str, ClientTlsOptions]]:
    for name, namespace in config.namespaces.items():
        options = getattr(namespace.options, "tls", None)
        if isinstance(options, ClientTlsOptions):
            yield f"namespaces.{name}", options
