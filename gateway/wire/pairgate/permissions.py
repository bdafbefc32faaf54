"""`GET /v1/permissions`: the actions that the client may take, a `Permissions` as JSON."""

from typing import Final

from gateway.domain.operators.permissions import Permissions
from gateway.wire.pairgate import admin_json

PATH: Final = "/v1/permissions"


def build_permissions(permissions: Permissions) -> bytes:
    return admin_json.build_answer(permissions)
