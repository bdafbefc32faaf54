"""The error of a configuration."""

from collections.abc import Iterable


class ConfigError(Exception):
    """The configuration is invalid; `problems` has one line for each error."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))
