"""Parts of the tests of slow clients that other tests need, too."""

from typing import Final

from gateway.domain.entity import EntityPath
from gateway.domain.message import symbol
from gateway.wire.amqp.performatives import described, uint
from tests.wire.amqp.frames import frame, transfer

ORDERS: Final = EntityPath("orders")
SASL: Final = (
    b"AMQP\x03\x01\x00\x00\x00\x00\x00\x19\x02\x01\x00\x00\x00\x53\x41\xc0\x0c\x01\xa3\x09ANONYMOUS"
)
AMQP: Final = SASL + (
    b"AMQP\x00\x01\x00\x00\x00\x00\x00\x11\x02\x00\x00\x00\x00\x53\x10\xc0\x04\x01\xa1\x01a"
)
BEGIN: Final = frame(0x11, [None, uint(0), uint(1000), uint(1000)])
PLAIN: Final = b"\0RootManageSharedAccessKey\0SAS_KEY_VALUE"
# A client with all rights, and with a link on which it sends.
AUTHORIZED: Final = (
    SASL[:8] + frame(0x41, [symbol("PLAIN"), PLAIN], kind=1) + AMQP[len(SASL) :] + BEGIN
)
TARGET: Final = described(0x29, [ORDERS.key])
SENDER: Final = AUTHORIZED + frame(
    0x12, ["link", uint(0), False, None, None, described(0x28, []), TARGET, None, None, uint(0)]
)
PART: Final = transfer(1, more=True)
UNFINISHED: Final = transfer(1, payload=bytes(60_000))
