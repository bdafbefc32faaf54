"""
Calls a function with a planted bug: `python -m tests.harness.planted_call FOLDER [FILE ...]`.

The folder has the question, and a copy of the package, with the bug in these files. They are named
to a process that has imported the package already, without the bug.
"""

import gc
import os
import pickle
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final, cast

from tests.harness.changed_functions import change, changed_functions
from tests.harness.planted import ROOT, environment

MODULE: Final = "tests.harness.planted_call"


def main(folder: Path, files: Sequence[str]) -> None:
    if not plant(folder, files):
        command = [sys.executable, "-m", MODULE, str(folder)]
        os.execve(command[0], command, environment(folder))
    answer(folder)


def plant(folder: Path, files: Sequence[str]) -> bool:
    """Put the bug into the modules of this process; False: not only functions have changed."""
    found = [changed_functions(ROOT / each, folder / each) for each in files]
    if None in found:
        return False
    for file in files:
        import_module(file.removesuffix(".py").replace("/", "."))
    change({old: new for changes in found for old, new in (changes or {}).items()})
    return True


def answer(folder: Path) -> None:
    # The function's module may import the whole package, and none of it is garbage.
    gc.disable()
    function, args, kwargs = cast(
        tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]],
        pickle.loads((folder / "question").read_bytes()),
    )
    gc.freeze()
    gc.enable()
    (folder / "answer").write_bytes(pickle.dumps(function(*args, **kwargs)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
