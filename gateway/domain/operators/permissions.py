"""The actions that a client may take in a process, so that tools offer nothing else."""

import enum

import attrs


class Role(enum.Enum):
    READER = "reader"
    OPERATOR = "operator"


@attrs.frozen(kw_only=True)
class Permissions:
    """A client of the endpoint `admin`: its role, and the actions that work for it there."""

    name: str  # of its access policy or user
    role: Role
    actions: tuple[str, ...]  # empty for a reader
