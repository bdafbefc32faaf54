from gateway.store.local.hooks import Recent


def test_the_oldest_is_forgotten_first() -> None:
    recent = Recent(most=2)
    recent.record("orders", [("a", 1), (7, 2), (None, 3), ("b", 4), ("a", 5), ("c", 6)])

    found = {name: recent.sequence_of("orders", name) for name in "abc"}
    assert found == {"a": None, "b": 4, "c": 6}
    assert recent.sequence_of("invoices", "c") is None


def test_long_ids_fill_no_memory() -> None:
    recent = Recent()
    recent.record("orders", [("x" * 128, 1), ("x" * 129, 2)])

    assert recent.sequence_of("orders", "x" * 128) == 1
    assert recent.sequence_of("orders", "x" * 129) is None
