"""
    python -m examples.billing [--transactions N] [--batch N] [--accounts N] [--workers N]

Bills transactions in batches, kills a worker halfway, and says whether each was counted once.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import trio

from examples.billing.office import Office, Order
from gateway.app.runtime import Runtime


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("transactions", "batch", "accounts", "workers"):
        default = getattr(Order(), name)
        parser.add_argument(f"--{name}", type=int, default=default, help=f"default: {default}")
    parser.add_argument("--spare", dest="kill", action="store_false", help="kill nobody")
    parser.add_argument("--folder", type=Path, help="an empty folder; its files stay")
    given = parser.parse_args()
    folder = given.folder
    del given.folder
    try:
        order = Order(**vars(given))
    except ValueError as error:
        parser.error(str(error.args[0]))
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            parser.error(f"--folder: {folder} isn't empty")
        return _run(order, folder)
    with tempfile.TemporaryDirectory() as name:
        return _run(order, Path(name))


def _run(order: Order, folder: Path) -> int:
    found = trio.run(Office(order=order, folder=folder.resolve(), runtime=Runtime()).run)
    print("\n".join(found.lines))
    return 1 if found.mistakes else 0


if __name__ == "__main__":
    sys.exit(main())
