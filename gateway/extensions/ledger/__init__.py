"""A ledger records the fate of each message, for `pairgate explain` and `pairgate reconcile`."""

from typing import Final

from gateway.extensions.extension import Extension

EXTENSION: Final = Extension(
    package=__name__,
    tables=["options:LEDGER"],
    files=["options:files"],
    processes=["process:open_ledger"],
    interceptors=["process:RECORDER"],
    calls=["facts:FACTS"],
    commands={
        "explain": (
            "explaining:explain",
            "Tell which way a message went, where it is now, and why, from the pair's ledgers.",
        ),
        "reconcile": (
            "reconciling:reconcile",
            "Count what was accepted, diverted, moved, dead-lettered or sent twice, with the ids.",
        ),
    },
)
