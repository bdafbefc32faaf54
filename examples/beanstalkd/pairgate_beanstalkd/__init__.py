"""
beanstalkd as a namespace of Pairgate, and a log of slow operations.

The list of extensions imports this package in each process. So it names its parts and imports none.
"""

from typing import Final

from gateway.extensions.extension import Extension

SLOW_LOG: Final = Extension(
    package=__name__, tables=["slow_log:TABLE"], interceptors=["slow_log:ROW"]
)
