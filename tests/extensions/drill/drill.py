"""Parts of the tests of drill that other tests need, too."""

PAIR = """
[namespaces.east]
url = "embedded:east.db"
queues = ["one", "two"]

[namespaces.west]
url = "embedded:west.db"

[pairing]
primary = "east"
secondary = "west"
enable_syphon = true
failover_interval = "1s"
attempt_timeout = "500ms"
ping_interval = "1s"
trial_pause = { first = "100ms", cap = "200ms", jitter = 0.2 }

[pairing.syphon]
retry = { first = "100ms", cap = "500ms", jitter = 0.2 }
unknown_retry = { first = "100ms", cap = "500ms", jitter = 0.2 }
queue_retry = { first = "100ms", cap = "500ms", jitter = 0.2 }

[[endpoints]]
protocol = "service-bus-http"
bind = "127.0.0.1:0"

[[endpoints]]
protocol = "admin"
bind = "127.0.0.1:0"

[drill]
allowed = true
"""
