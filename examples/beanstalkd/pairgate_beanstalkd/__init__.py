"""
beanstalkd as a namespace of Pairgate, and logs of slow operations and of large messages.

The list of extensions imports this package in each process. So it names its parts and imports none.
"""

from typing import Final

from gateway.extensions.extension import Extension

LOGS: Final = Extension(
    package=__name__,
    tables=["slow_log:TABLE", "large_messages:TABLE"],
    interceptors=["slow_log:ROW", "large_messages:ROW"],
)
