"""Counts the steps that tasks take: each is a wake-up that somebody has caused."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import attrs
import trio


@attrs.define(eq=False)
class _Watch(trio.abc.Instrument):
    steps: Counter[str]

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.steps[task.name] += 1


@contextmanager
def steps_of_tasks() -> Iterator[Counter[str]]:
    """The steps within the context, by the name of each task's function."""
    watch = _Watch(Counter())
    trio.lowlevel.add_instrument(watch)
    try:
        yield watch.steps
    finally:
        trio.lowlevel.remove_instrument(watch)
