"""Large bodies in a store of their own, `[claims]`; many small messages in one, `[[packing]]`."""

from typing import Final

from gateway.extensions.extension import Extension

EXTENSION: Final = Extension(
    package=__name__,
    tables=["options:CLAIMS", "options:PACKING"],
    completions=["options:completed"],
    checks=["options:problems"],
    warnings=["options:warnings"],
    wrappers=["assembly:PACKS", "assembly:REFERENCES"],
    findings=["opening:check_store"],
)
