"""The benchmark of interceptors runs."""

from click.testing import CliRunner

from benchmarks.interception import ROWS, main


def test_each_row_has_its_time_of_a_send() -> None:
    result = CliRunner().invoke(main, ["--sends", "10", "--rounds", "1"])

    assert result.exit_code == 0, result.output
    assert [line[:16].strip() for line in result.output.splitlines()] == [row.name for row in ROWS]
