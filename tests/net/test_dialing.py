"""Streams to servers that can't be there."""

import pytest

from gateway.domain.errors import Unavailable
from gateway.net.dialing import Place, dial


@pytest.mark.parametrize("host", [f"{'a' * 70}.example", "a..b", "\N{SNOWMAN}.example"], ids=ascii)
async def test_a_name_that_no_host_can_have_is_an_outage(host):
    with pytest.raises(Unavailable, match="no host can have that name"):
        await dial(Place(host=host, port=1))
