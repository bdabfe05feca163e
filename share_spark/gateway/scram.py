"""SCRAM (RFC 5802, RFC 7677) as a server has it: the keys that it keeps of a password, and its side of an exchange. No
I/O and no randomness.

As in Kafka, and unlike the RFC, passwords and names are not normalized (SASLprep); that is why no library for SCRAM is
used, as for the client's side (``kafka/sasl_exchange.py``).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from share_spark.kafka.sasl_exchange import SCRAM_HASHES, scram_keys

_NONCE = re.compile(r"[\x21-\x2b\x2d-\x7e]+")


class ExchangeError(ValueError):
    """An exchange that does not prove who the client is. No message tells why, or has a secret in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScramKeys:
    """The keys of a password for one mechanism, from which nobody can log in."""

    iterations: int
    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)

    @classmethod
    def of(cls, mechanism: str, password: bytes, *, salt: bytes, iterations: int) -> ScramKeys:
        """Return the keys of a password, which takes some time."""
        client_key, server_key = scram_keys(mechanism, password, salt, iterations)
        stored_key = hashlib.new(SCRAM_HASHES[mechanism], client_key).digest()
        return cls(iterations=iterations, salt=salt, stored_key=stored_key, server_key=server_key)

    def are_of(self, mechanism: str, password: bytes) -> bool:
        """Return whether they are the keys of this password, which takes some time."""
        found = ScramKeys.of(mechanism, password, salt=self.salt, iterations=self.iterations)
        return hmac.compare_digest(found.stored_key, self.stored_key)


class Said(NamedTuple):
    """The next message of a server. ``user``: who has logged in with the message before it, None: nobody yet."""

    answer: bytes
    user: str | None = None


KeysOf = Callable[[str, str], ScramKeys]
"""Returns the keys of a user for a mechanism, and others, with which nobody can log in, if there is no such user."""


@dataclass(slots=True)
class ScramExchange:
    """One exchange. ``nonce``: a text that nobody can guess, without a comma."""

    mechanism: str
    keys_of: KeysOf
    nonce: str
    _first: _ClientFirst | None = None
    _answered: str = ""

    def answer(self, said: bytes) -> Said:
        """Return the answer to a message of the client. Raises ExchangeError."""
        if self._first is None:
            self._first = _client_first(_decoded(said))
            keys = self.keys_of(self._first.user, self.mechanism)
            nonce = self._first.nonce + self.nonce
            self._answered = f"r={nonce},s={_text(keys.salt)},i={keys.iterations}"
            return Said(self._answered.encode())
        return self._verdict(self._first, _decoded(said))

    def _verdict(self, first: _ClientFirst, final: str) -> Said:
        spoken, _, proof = final.rpartition(",p=")
        binding, _, nonce = spoken.partition(",r=")
        # Extensions, which a client may add after the nonce, are none of ours; the proof covers them.
        if binding != f"c={_text(first.header.encode())}" or nonce.partition(",")[0] != first.nonce + self.nonce:
            raise ExchangeError
        keys, algorithm = self.keys_of(first.user, self.mechanism), SCRAM_HASHES[self.mechanism]
        everything = f"{first.bare},{self._answered},{spoken}".encode()
        signature = hmac.digest(keys.stored_key, everything, algorithm)
        client_key = _xor(_bytes(proof), signature)
        if not hmac.compare_digest(hashlib.new(algorithm, client_key).digest(), keys.stored_key):
            raise ExchangeError
        return Said(f"v={_text(hmac.digest(keys.server_key, everything, algorithm))}".encode(), first.user)


class _ClientFirst(NamedTuple):
    header: str
    bare: str
    user: str
    nonce: str


def _client_first(message: str) -> _ClientFirst:
    """Read the first message: without channel binding, and for nobody else than the user."""
    parts = message.split(",", 4)
    if len(parts) < 4 or parts[0] not in ("n", "y") or parts[2][:2] != "n=" or parts[3][:2] != "r=":
        raise ExchangeError
    binding, for_whom, user, nonce = parts[:4]
    if for_whom not in ("", f"a={user[2:]}") or not _NONCE.fullmatch(nonce[2:]):
        raise ExchangeError
    bare = message[len(binding) + len(for_whom) + 2 :]
    return _ClientFirst(f"{binding},{for_whom},", bare, _name(user[2:]), nonce[2:])


def _name(written: str) -> str:
    """Return a name, in which a comma and an equals sign are written as ``=2C`` and ``=3D``."""
    if not written or re.search("=(?!2C|3D)", written):
        raise ExchangeError
    return written.replace("=2C", ",").replace("=3D", "=")


def _decoded(message: bytes) -> str:
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise ExchangeError from None


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        raise ExchangeError from None


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _xor(one: bytes, other: bytes) -> bytes:
    if len(one) != len(other):
        raise ExchangeError
    return bytes(a ^ b for a, b in zip(one, other, strict=True))


@dataclass(slots=True)
class PlainExchange:
    """SASL PLAIN (RFC 4616): the client sends its password, which is a secret over TLS only."""

    keys_of: KeysOf

    def answer(self, said: bytes) -> Said:
        """Return the answer, which is empty. Takes some time. Raises ExchangeError."""
        parts = said.split(b"\0")
        if len(parts) != 3:
            raise ExchangeError
        for_whom, user, password = _decoded(parts[0]), _decoded(parts[1]), parts[2]
        mechanism = "SCRAM-SHA-512"
        is_right = self.keys_of(user, mechanism).are_of(mechanism, password)
        if not is_right or for_whom not in ("", user):
            raise ExchangeError
        return Said(b"", user)


Exchange = ScramExchange | PlainExchange
