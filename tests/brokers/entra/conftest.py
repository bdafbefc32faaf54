from collections.abc import Iterator

import pytest
import trio

from tests.harness.identity_provider import IdentityProvider, identity_provider


@pytest.fixture(scope="module")
def running_provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[IdentityProvider]:
    found = identity_provider(tmp_path_factory.mktemp("provider"))
    trio.run(found.server.start)
    yield found
    trio.run(found.server.kill)


@pytest.fixture
def provider(running_provider: IdentityProvider) -> IdentityProvider:
    """An identity provider that answers as usual; its process serves all tests of a file."""
    running_provider.forget()
    return running_provider
