"""The login of our own connections to a broker, from the options for Kafka's clients: TLS by Python's ``ssl``, SASL by
``sasl_exchange``."""

from __future__ import annotations

import secrets
import ssl
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from share_spark.kafka.options import KafkaOptions
from share_spark.kafka.sasl_exchange import SCRAM_HASHES, SaslExchange, plain, scram
from share_spark.model.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerLogin:
    """The security of a connection. ``tls`` None: plain TCP. ``mechanism`` empty: no SASL; else ``begin`` begins an
    exchange of it. Its ``repr`` shows no secret."""

    tls: ssl.SSLContext | None = None
    mechanism: str = ""
    begin: Callable[[], SaslExchange] | None = None

    @classmethod
    def of(cls, options: KafkaOptions) -> BrokerLogin:
        """Return the login that ``options`` describe. Raises ConfigError: a mechanism that is not supported here, a
        file that cannot be read, a key of another certificate."""
        given = options.values
        protocol = given.get("security.protocol", "PLAINTEXT")
        mechanism = given.get("sasl.mechanism", "") if protocol.startswith("SASL") else ""
        if mechanism not in ("", "PLAIN", *SCRAM_HASHES):
            raise ConfigError(
                f"our own connections to Kafka (gateway, a cluster's share groups) are made with SASL PLAIN, "
                f"{', '.join(SCRAM_HASHES)} or without SASL, not with {mechanism}"
            )
        return cls(
            tls=_tls_context(given) if protocol.endswith("SSL") else None,
            mechanism=mechanism,
            begin=_exchanges(mechanism, given["sasl.username"], given["sasl.password"]) if mechanism else None,
        )


def _exchanges(mechanism: str, username: str, password: str) -> Callable[[], SaslExchange]:
    if mechanism == "PLAIN":
        return lambda: plain(username, password)
    return lambda: scram(mechanism, username, password, secrets.token_urlsafe(24))


def _tls_context(given: Mapping[str, str]) -> ssl.SSLContext:
    """Return a context that wants a certificate of a known authority, for the host unless that is switched off."""
    if "ssl.keystore.location" in given:
        raise ConfigError(
            "our own connections to Kafka (gateway, a cluster's share groups) are made with ssl.certificate.location "
            "and ssl.key.location (PEM), not with ssl.keystore.location (PKCS12)"
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = given.get("ssl.endpoint.identification.algorithm", "https") != "none"
    _load_authorities(context, given)
    if "ssl.certificate.location" in given or "ssl.certificate.pem" in given:
        _load_certificate(context, given)
    return context


def _load_authorities(context: ssl.SSLContext, given: Mapping[str, str]) -> None:
    """Load the given authorities, those of the machine if none are given."""
    location, pem = given.get("ssl.ca.location"), given.get("ssl.ca.pem")
    if location is None and pem is None:
        context.load_default_certs()
        return
    with _as_config_error("ssl.ca.pem" if location is None else f"ssl.ca.location {location}"):
        if location is not None and Path(location).is_dir():
            context.load_verify_locations(capath=location)
        else:
            context.load_verify_locations(cafile=location, cadata=None if location is not None else pem)


def _load_certificate(context: ssl.SSLContext, given: Mapping[str, str]) -> None:
    """Load the certificate of the client. Python reads files only, so texts are written to temporary ones for that."""
    with tempfile.TemporaryDirectory() as directory, _as_config_error("certificate and key of the client"):
        files = {}
        for stem in ("ssl.certificate", "ssl.key"):
            files[stem] = given.get(f"{stem}.location", f"{directory}/{stem}")
            if f"{stem}.location" not in given:
                Path(files[stem]).write_text(given[f"{stem}.pem"], encoding="utf-8")
        # Without a password OpenSSL would ask for one at the terminal.
        password = given.get("ssl.key.password", "")
        context.load_cert_chain(files["ssl.certificate"], files["ssl.key"], password)


@contextmanager
def _as_config_error(what: str) -> Iterator[None]:
    try:
        yield
    except ssl.SSLError as fault:
        raise ConfigError(f"Kafka options: {what}: {fault.reason or 'it is not PEM'}") from None
    except (OSError, ValueError) as fault:
        reason = getattr(fault, "strerror", None) or "it is not PEM"
        raise ConfigError(f"Kafka options: {what}: cannot be read ({reason})") from None
