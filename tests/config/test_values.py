import os
from pathlib import Path

import pytest

from gateway.config.secrets import Secret, SecretSource
from gateway.config.values import seconds, size
from tests.harness.links import STRANGER, needs_root


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("250ms", 0.25),
        ("10s", 10.0),
        ("1.5s", 1.5),
        ("5m", 300.0),
        ("1h", 3600.0),
        ("2d", 172800.0),
        ("PT1M", 60.0),
        ("PT0.5S", 0.5),
        ("P1DT2H", 93600.0),
    ],
)
def test_durations_have_a_unit(text: str, expected: float) -> None:
    assert seconds(text) == expected


@pytest.mark.parametrize(
    "value", [10, 1.5, True, "10", "s", "-1s", "P", "PT", "P1DT", "1 s", "\u0661s", ""]
)
def test_an_invalid_duration_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match='a duration such as "10s"'):
        seconds(value)


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0, 0), (4096, 4096), ("1B", 1), ("64KiB", 65536), ("1 MiB", 1048576), ("2GiB", 2**31)],
)
def test_sizes_are_bytes_or_have_a_unit(value: object, expected: int) -> None:
    assert size(value) == expected


@pytest.mark.parametrize("value", [-1, True, 1.5, "64KB", "64", "KiB", "-1KiB", "1.5MiB"])
def test_an_invalid_size_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="a size such as"):
        size(value)


def test_a_secret_never_shows_itself(tmp_path: Path) -> None:
    source = SecretSource(environ={"KEY": "hush"}, folder=tmp_path)

    secret = source.read({"env": "KEY"})

    assert secret == Secret("hush")
    assert "hush" not in f"{secret!r} {secret} {source!r}"


def test_a_secret_comes_from_a_file_beside_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("hush\n")
    (tmp_path / "key").chmod(0o600)
    source = SecretSource(environ={}, folder=tmp_path)

    assert source.read({"file": "key"}) == Secret("hush")
    assert source.warnings == []


@pytest.mark.parametrize(("mode", "can"), [(0o644, "read"), (0o604, "read"), (0o602, "change")])
def test_a_secret_that_every_user_has_is_refused(mode: int, can: str, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("hush")
    (tmp_path / "key").chmod(mode)
    source = SecretSource(environ={}, folder=tmp_path)

    with pytest.raises(ValueError, match=rf"key: every user .* can {can} .*{mode:04o}") as it:
        source.read({"file": "key"})

    assert "hush" not in str(it.value)


def test_a_secret_of_ours_that_its_group_can_read_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("hush")
    (tmp_path / "key").chmod(0o640)
    source = SecretSource(environ={}, folder=tmp_path)

    assert source.read({"file": "key"}) == Secret("hush")

    [warning] = source.warnings
    assert "its group can read" in warning
    assert "hush" not in warning


@needs_root
def test_a_secret_that_root_has_given_our_group_is_no_doubt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "key").write_text("hush")
    (tmp_path / "key").chmod(0o440)
    monkeypatch.setattr(os, "geteuid", lambda: STRANGER)
    source = SecretSource(environ={}, folder=tmp_path)

    assert source.read({"file": "key"}) == Secret("hush")
    assert source.warnings == []


@needs_root
@pytest.mark.parametrize("mode", [0o600, 0o640])
def test_a_secret_that_another_user_can_change_is_a_warning(mode: int, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("hush")
    (tmp_path / "key").chmod(mode)
    os.chown(tmp_path / "key", STRANGER, -1)
    source = SecretSource(environ={}, folder=tmp_path)

    assert source.read({"file": "key"}) == Secret("hush")

    [warning] = source.warnings
    assert "belongs to another user (12345), who can change this secret" in warning
    assert "hush" not in warning


@pytest.mark.parametrize(
    "value", ["hush", 7, {"env": "A", "file": "hush"}, {"key": "hush"}, ["hush"], {"env": 7}]
)
def test_a_secret_in_the_file_itself_is_refused_and_not_repeated(
    value: object, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="a secret must not be in this file") as caught:
        SecretSource(environ={}, folder=tmp_path).read(value)

    assert "hush" not in str(caught.value)


def test_a_missing_secret_is_named(tmp_path: Path) -> None:
    source = SecretSource(environ={"EMPTY": ""}, folder=tmp_path)
    (tmp_path / "empty").write_text("\n")

    for value, name in [
        ({"env": "NOPE"}, "NOPE"),
        ({"env": "EMPTY"}, "EMPTY"),
        ({"file": "nope"}, "nope"),
        ({"file": "empty"}, "empty"),
    ]:
        with pytest.raises(ValueError, match=name):
            source.read(value)
