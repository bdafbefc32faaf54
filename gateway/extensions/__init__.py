"""Optional features, each in a folder of its own. The core knows only `listing` and `extension`."""
