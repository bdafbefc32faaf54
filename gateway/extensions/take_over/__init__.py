"""A restart that refuses no connection: a process hands its listening sockets to its successor."""

from typing import Final

from gateway.extensions.extension import Extension, Flag

FLAG: Final = "take-over"  # of `pairgate serve`
EXTENSION: Final = Extension(
    package=__name__,
    tables=["options:TAKE_OVER"],
    files=["options:files"],
    successions=["succession:SUCCESSION"],
    serve_flags=[
        Flag(
            FLAG,
            "Take the ports over from the gateway that runs, which drains when this one is ready.",
        )
    ],
)
