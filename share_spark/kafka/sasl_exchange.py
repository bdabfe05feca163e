"""SASL as Kafka's clients have it: the messages of PLAIN (RFC 4616) and of SCRAM (RFC 5802, RFC 7677, KIP-84). No I/O
and no randomness; what is yielded goes to the broker, and its answer comes back.

Passwords are not normalized (SASLprep, RFC 4013), as in Kafka. A library for SCRAM that normalizes would fail with some
passwords that are not ASCII.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Generator

SaslExchange = Generator[bytes, bytes, None]
"""The client's side of an exchange. It raises ValueError for an answer that does not prove the password; no message has
a secret in it."""

SCRAM_HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}

LEAST_ITERATIONS, MOST_ITERATIONS = 4_096, 1_000_000
"""Limits of SCRAM's iterations: with fewer a password is too easy to guess (as in Kafka), more could keep us busy."""


def scram_keys(mechanism: str, password: bytes, salt: bytes, iterations: int) -> tuple[bytes, bytes]:
    """Return (the client's key, the server's key) of a password, which takes some time. ``mechanism``: of
    SCRAM_HASHES."""
    algorithm = SCRAM_HASHES[mechanism]
    salted = hashlib.pbkdf2_hmac(algorithm, password, salt, iterations)
    return hmac.digest(salted, b"Client Key", algorithm), hmac.digest(salted, b"Server Key", algorithm)


def plain(username: str, password: str) -> SaslExchange:
    """Send the password itself, which is a secret over TLS only."""
    yield b"\0" + username.encode() + b"\0" + password.encode()


def scram(mechanism: str, username: str, password: str, nonce: str) -> SaslExchange:
    """Prove that we know the password, without sending it, and check that the broker knows it. ``mechanism``: of
    SCRAM_HASHES; ``nonce``: a text that nobody can guess, without a comma."""
    algorithm = SCRAM_HASHES[mechanism]
    first = f"n={username.replace('=', '=3D').replace(',', '=2C')},r={nonce}"
    answer = (yield f"n,,{first}".encode()).decode()
    said = _attributes(answer)
    if not said.get("r", "").startswith(nonce) or said["r"] == nonce:
        raise ValueError("SCRAM: the broker answers somebody else")
    client_key, server_key = scram_keys(mechanism, password.encode(), _bytes(said, "s"), _iterations(said))
    final = f"c={_text(b'n,,')},r={said['r']}"
    spoken = f"{first},{answer},{final}".encode()
    signature = hmac.digest(hashlib.new(algorithm, client_key).digest(), spoken, algorithm)
    proof = bytes(key ^ sign for key, sign in zip(client_key, signature, strict=True))
    verdict = _attributes((yield f"{final},p={_text(proof)}".encode()).decode())
    if "e" in verdict:
        raise ValueError(f"SCRAM: {verdict['e']}")
    if not hmac.compare_digest(_bytes(verdict, "v"), hmac.digest(server_key, spoken, algorithm)):
        raise ValueError("SCRAM: the broker does not know the password")


def _attributes(message: str) -> dict[str, str]:
    return {name: value for name, _, value in (part.partition("=") for part in message.split(","))}


def _iterations(said: dict[str, str]) -> int:
    text = said.get("i", "")
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise ValueError("SCRAM: the broker does not say how many iterations")
    if not LEAST_ITERATIONS <= int(text) <= MOST_ITERATIONS:
        raise ValueError(f"SCRAM: {text} iterations are outside {LEAST_ITERATIONS} to {MOST_ITERATIONS}")
    return int(text)


def _bytes(said: dict[str, str], name: str) -> bytes:
    try:
        return base64.b64decode(said[name], validate=True)
    except (KeyError, binascii.Error):
        raise ValueError(f"SCRAM: the broker's answer has no {name}") from None


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode()
