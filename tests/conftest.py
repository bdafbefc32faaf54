"""What holds for all tests."""

import signal

from hypothesis import HealthCheck, settings

# Who is started in the background of a shell ignores it, and so do all whom tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes says how busy the machine is, and nothing about the code.
settings.register_profile(
    "any-machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any-machine")
