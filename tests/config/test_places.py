import pytest

from gateway.config.endpoints import moved


@pytest.mark.parametrize(
    ("bind", "expected"),
    [
        ("127.0.0.1:5300", "127.0.0.1:5400"),
        ("[::1]:5300", "[::1]:5400"),
        ("127.0.0.1:0", "127.0.0.1:0"),
        ("nonsense", "nonsense"),
        ("unix:/run/a:1", "unix:/run/a:1+100"),
    ],
)
def test_every_port_is_moved_but_the_free_one(bind: str, expected: str) -> None:
    assert moved(bind, 100) == expected
