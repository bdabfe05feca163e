"""TLS for clients: the files of its certificates, read and checked before anything listens."""

from __future__ import annotations

import hashlib
import ssl
from dataclasses import dataclass
from pathlib import Path

from share_spark.model.errors import ConfigError

_CERTIFICATE, _KEY = "CERTIFICATE-----", "PRIVATE KEY-----"
"""A part of each PEM file of this kind."""

_BEGIN, _END = (f"-----{word} CERTIFICATE-----" for word in ("BEGIN", "END"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """The files of TLS for clients of ``listen_on``, in PEM.

    ``certificate``: the chain, its own certificate first. ``key``: without a password. ``client_ca``: the authorities
    of clients, who then have to have a certificate; None: anybody may connect.
    """

    certificate: str
    key: str
    client_ca: str | None = None

    def context(self) -> ssl.SSLContext:
        """Read the files. Raises ConfigError, which names the file at fault."""
        _check("certificate", self.certificate, _CERTIFICATE)
        key = _check("key", self.key, _KEY)
        if "ENCRYPTED" in key:
            raise ConfigError(f"TLS key {self.key}: it has a password; the gateway takes a key without one")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        _load_key(context, self)
        if self.client_ca is not None:
            _check("client CA", self.client_ca, _CERTIFICATE)
            _load_authorities(context, self.client_ca)
        return context

    def to_others(self) -> ssl.SSLContext:
        """Return the context for connections to other gateways. They are known by their fingerprints, not by names, and
        this one shows its own certificate where they ask for one."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        _load_key(context, self)
        return context

    def fingerprint(self) -> str:
        """Return the SHA-256 of the certificate."""
        chain = _check("certificate", self.certificate, _CERTIFICATE)
        begin, end = chain.index(_BEGIN), chain.index(_END) + len(_END)
        return hashlib.sha256(ssl.PEM_cert_to_DER_cert(chain[begin:end])).hexdigest()


def _check(what: str, file: str, mark: str) -> str:
    """Return the text of a PEM file. Raises ConfigError."""
    try:
        text = Path(file).read_text(encoding="latin-1")
    except OSError as fault:
        raise ConfigError(f"TLS {what} {file}: {fault.strerror}") from None
    if mark not in text:
        raise ConfigError(f"TLS {what} {file}: there is no {mark.removesuffix('-----').lower()} in it (PEM)")
    return text


def _load_key(context: ssl.SSLContext, files: Tls) -> None:
    try:
        # Without a password OpenSSL would ask for one at the terminal.
        context.load_cert_chain(files.certificate, files.key, password="")
    except ssl.SSLError as fault:
        if fault.reason == "KEY_VALUES_MISMATCH":
            raise ConfigError(f"TLS key {files.key}: it is not the key of certificate {files.certificate}") from None
        reason = fault.reason or "not PEM"
        raise ConfigError(f"TLS certificate {files.certificate} and key {files.key}: {reason}") from None


def _load_authorities(context: ssl.SSLContext, file: str) -> None:
    try:
        context.load_verify_locations(cafile=file)
    except ssl.SSLError as fault:
        raise ConfigError(f"TLS client CA {file}: {fault.reason or 'not PEM'}") from None
    context.verify_mode = ssl.CERT_REQUIRED
