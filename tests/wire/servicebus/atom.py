"""Parts of the tests of atom that other tests need, too."""

from datetime import UTC, datetime, timedelta

import attrs
from hypothesis import strategies as st

from gateway.domain.entity import EntityPath
from gateway.wire.http.messages import Request

ORIGIN = "https://localhost:23443"
SB = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
entities = st.from_regex(
    r"[A-Za-z0-9_~-][A-Za-z0-9._~-]{0,8}(/[A-Za-z0-9_-]{1,8}){0,2}", fullmatch=True
)
paths = entities.filter(lambda name: "/subscriptions" not in name.lower()).map(EntityPath)
spans = st.timedeltas(timedelta(microseconds=1), timedelta(days=10675198))
dates = st.datetimes(datetime(2000, 1, 1), datetime(2999, 1, 1), timezones=st.just(UTC))
texts = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=30).filter(
    lambda text: "\ufffe" not in text and "\uffff" not in text
)
counts = st.integers(0, 2**40)
# No If-Match, *, or an ETag.
conditions = st.just((False, None)) | st.tuples(st.just(True), st.none() | st.integers(0, 2**62))


def conditional(operation, condition):
    update, version = condition
    return attrs.evolve(operation, update=update, if_version=version)


def get(target: str) -> Request:
    return Request(method="GET", target=target)
