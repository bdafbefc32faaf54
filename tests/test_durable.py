"""Symbolic links on the way to a folder: those of other users are found, wherever they are."""

import os
from pathlib import Path

import pytest

from gateway.durable import foreign_link, make_private_folder
from tests.harness.links import give_link, needs_root

ME = frozenset({os.geteuid()})
NOBODY: frozenset[int] = frozenset()


def test_a_foreign_link_is_found_behind_others_and_behind_dots(tmp_path: Path) -> None:
    (tmp_path / "disk" / "deep").mkdir(parents=True)
    (tmp_path / "disk" / "var").symlink_to("deep/../../data")
    (tmp_path / "own").symlink_to(tmp_path / "disk")
    way = tmp_path / "own" / "var" / "store"

    assert foreign_link(way, ME) is None
    assert foreign_link(way, NOBODY) == tmp_path / "own"
    assert foreign_link(tmp_path / "disk" / "var", NOBODY) == tmp_path / "disk" / "var"
    assert foreign_link(tmp_path / "disk" / "missing", NOBODY) is None


def test_links_in_a_circle_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")

    with pytest.raises(OSError, match="Too many levels"):
        make_private_folder(tmp_path / "a" / "store")


@needs_root
def test_no_folder_is_made_behind_a_foreign_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    give_link(tmp_path / "var", "disk")

    with pytest.raises(OSError, match="belongs to another user") as caught:
        make_private_folder(tmp_path / "var" / "deep" / "store")

    assert caught.value.filename == str(tmp_path / "var")
    assert not any((tmp_path / "disk").iterdir())


def test_a_folder_is_for_its_user_alone(tmp_path: Path) -> None:
    make_private_folder(tmp_path / "a")

    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o700
