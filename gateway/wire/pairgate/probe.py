"""
Probes at the admin endpoint, as JSON. `POST /v1/probe` has an order as its body:

    {"targets": ["orders", "bills/*"], "reason": "..."}

`reason` may be missing. The response is a `ProbeAnswer`.
"""

from typing import Final

from gateway.domain.operators.probe import ProbeAnswer, ProbeOrder
from gateway.wire.pairgate import admin_json

PATH: Final = "/v1/probe"


def build_order(order: ProbeOrder) -> bytes:
    return admin_json.build_order(order)


def parse_order(data: bytes) -> ProbeOrder:
    """
    Parse the body of `POST /v1/probe`.

    Raises:
        InvalidRequest: it is malformed.
    """
    with admin_json.refusing("probe"):
        return admin_json.structured(admin_json.load(data, "probe"), ProbeOrder)


def build_answer(answer: ProbeAnswer) -> bytes:
    return admin_json.build_answer(answer)


def parse_answer(data: bytes) -> ProbeAnswer:
    """
    Parse the answer to an order. Unknown keys are ignored.

    Raises:
        MessageError: it isn't one.
    """
    return admin_json.parse_answer(data, ProbeAnswer, "the answer to a probe")
