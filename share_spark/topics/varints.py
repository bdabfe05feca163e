"""Numbers of variable length, as in Kafka's records and messages: groups of 7 bits, the lowest first, and bit 8 in all
bytes but the last."""

from __future__ import annotations


def unsigned_varint(number: int) -> bytes:
    """Return the bytes of a number that is not negative."""
    if number < 0x80:
        return _ONE_BYTE[number]
    if number < 0x4000:
        return bytes((number & 0x7F | 0x80, number >> 7))
    groups = bytearray()
    while number >= 0x80:
        groups.append(number & 0x7F | 0x80)
        number >>= 7
    groups.append(number)
    return bytes(groups)


def signed_varint(number: int) -> bytes:
    """Return the bytes of any number: 0, -1, 1, -2, ... are written as 0, 1, 2, 3, ..., which is called zigzag."""
    return unsigned_varint(number << 1 if number >= 0 else ~(number << 1))


_ONE_BYTE = [bytes((number,)) for number in range(0x80)]
