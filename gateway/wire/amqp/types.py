"""
AMQP 1.0's type system (part 1 of the standard): Python values to bytes and back.

`domain.message.Kind` says which Python type corresponds to which AMQP type. The shortest encoding
is written, as the .NET and Python SDKs do; every encoding is read.

    primitive   code, payload           the code's high digit is the payload's size: 4_ none,
                                        5_ 1 byte, 6_ 2, 7_ 4, 8_ 8, 9_ 16; A_, C_, E_ a size
                                        in 1 byte, B_, D_, F_ in 4
    list, map   C_/D_  size count value*            size: of what follows it
    array       E_/F_  size count constructor payload*
    described   00 descriptor value

Input is untrusted: nesting is bounded, and sizes and counts are compared with the available bytes
before anything is allocated.
"""

from gateway.wire.amqp.decoding import (
    MAX_DEPTH,
    MAX_ZERO_WIDTH,
    decode,
    decode_at,
    from_milliseconds,
)
from gateway.wire.amqp.encoding import encode, encode_entries, encode_fields, to_milliseconds

__all__ = [
    "MAX_DEPTH",
    "MAX_ZERO_WIDTH",
    "decode",
    "decode_at",
    "encode",
    "encode_entries",
    "encode_fields",
    "from_milliseconds",
    "to_milliseconds",
]
