"""Connection options, given once and translated for two clients that name things differently.

Administration goes through librdkafka, records go through the Java client inside Spark's Kafka source and sink. A user
writes Java's names or librdkafka's, with or without Spark's ``kafka.`` prefix, and both clients get what they need. An
option that only one of them knows is refused by name: one half of a job would connect, and the other would not. Secrets
never reach ``repr``, errors or logs.

Nothing here connects to anything; the only I/O is reading the PEM files of a client certificate: the Java client gets
their text, so that executors need no copy of the files.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

from share_spark.kafka.option_names import (
    ALIASES,
    BOTH,
    CHOICES,
    CONSUMER,
    JAAS_TO_OPTION,
    KNOWN,
    LOGIN_MODULES,
    OIDC_HANDLER,
    PLAIN_TEXT,
    PRODUCER,
    RENAMED,
    RENAMED_CONSUMER,
    SECRETS,
    WITHOUT_EFFECT,
)
from share_spark.model.errors import ConfigError

_JAAS_OPTION = re.compile(r"""(\w+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'([^']*)'|([^\s;"']+))""")


MATCHES_REDACTION = "secret key\n"
"""Text before a PEM block, which Java's parser passes over (RFC 7468 calls it explanatory). In plans, its UI and its
event log Spark hides an option if its name or its value matches ``spark.redaction.regex``, by default secret, password,
token. Login texts and passwords match; the option ``ssl.keystore.key`` does not, and every write to Kafka would show
it."""


def _read_file(path: str) -> str:
    return Path(path).read_text(encoding="utf-8")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class KafkaOptions:
    """Connection options in one canonical form: Java's names, but librdkafka's for credentials.

    Make it with ``parse``; ``values`` holds secrets, and no text shows it.
    """

    values: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> KafkaOptions:
        """Check and unify what the user wrote.

        Raises ConfigError naming the key: unknown, given twice with different values, a value out of its choices, a
        credential that is missing or that only one of the clients can use.
        """
        given = _canonical_names(options)
        _check_choices(given)
        values = _unify_stores(_unify_sasl(given))
        _check_complete(values)
        return cls(values=MappingProxyType(dict(sorted(values.items()))))

    def __repr__(self) -> str:
        shown = (f"{key}={value if key in PLAIN_TEXT else '(hidden)'}" for key, value in self.values.items())
        return f"KafkaOptions({', '.join(shown)})"

    def without_secrets(self, text: str) -> str:
        """Return ``text`` of a client with every secret in it replaced."""
        return without_secrets(self.values, text)

    def with_isolation_level(self, level: str) -> KafkaOptions:
        """Return these options with an isolation level. Raises ConfigError if another one was given."""
        if self.values.get("isolation.level", level) != level:
            raise ConfigError(f"Kafka option 'isolation.level' is not {level}: set share.isolation.level instead")
        values = {**self.values, "isolation.level": level}
        return replace(self, values=MappingProxyType(dict(sorted(values.items()))))

    @property
    def bootstrap_servers(self) -> str:
        """The servers as ``host:port,…``, for errors."""
        return self.values["bootstrap.servers"]

    @property
    def read_committed(self) -> bool:
        """Whether records of open and aborted transactions are left out; not by default, as in Kafka."""
        return self.values.get("isolation.level") == "read_committed"

    def librdkafka(self) -> dict[str, str]:
        """Return the configuration of a ``confluent_kafka`` AdminClient."""
        config = {key: self.values[key] for key in self._given(BOTH)}
        config.update((RENAMED[key], self.values[key]) for key in self._given(RENAMED))
        return config | self._librdkafka_tls() | self._librdkafka_sasl()

    def librdkafka_consumer(self) -> dict[str, str]:
        """Return the configuration of a ``confluent_kafka`` Consumer."""
        config = {RENAMED_CONSUMER.get(key, key): self.values[key] for key in self._given(CONSUMER)}
        config.pop("max.poll.records", None)
        return config | self.librdkafka()

    def spark_source(self, read_file: Callable[[str], str] = _read_file) -> dict[str, str]:
        """Return the ``kafka.*`` options of Spark's Kafka source. Raises ConfigError (a file unreadable)."""
        return self._spark((*BOTH, *RENAMED, *CONSUMER), read_file)

    def spark_sink(self, read_file: Callable[[str], str] = _read_file) -> dict[str, str]:
        """Return the ``kafka.*`` options of Spark's Kafka sink. Raises ConfigError (a file unreadable)."""
        return self._spark((*BOTH, *RENAMED, *PRODUCER), read_file)

    def _spark(self, keys: Iterable[str], read_file: Callable[[str], str]) -> dict[str, str]:
        config = {key: self.values[key] for key in self._given(keys)}
        config |= self._java_tls(read_file) | self._java_sasl()
        return {f"kafka.{key}": value for key, value in config.items()}

    def _given(self, keys: Iterable[str]) -> list[str]:
        return [key for key in keys if key in self.values]

    def _librdkafka_tls(self) -> dict[str, str]:
        keys = [key for key in self.values if key.startswith("ssl.") and key != "ssl.keystore.type"]
        return {key: self.values[key] for key in keys}

    def _librdkafka_sasl(self) -> dict[str, str]:
        keys = [key for key in self.values if key.startswith("sasl.")]
        return {key: self.values[key] for key in keys if key != "sasl.jaas.config"}

    def _java_tls(self, read_file: Callable[[str], str]) -> dict[str, str]:
        config = self._java_truststore() | self._java_keystore(read_file)
        if "ssl.key.password" in self.values:
            config["ssl.key.password"] = self.values["ssl.key.password"]
        if (algorithm := self.values.get("ssl.endpoint.identification.algorithm")) is not None:
            config["ssl.endpoint.identification.algorithm"] = algorithm.replace("none", "")
        return config

    def _java_truststore(self) -> dict[str, str]:
        if (path := self.values.get("ssl.ca.location")) is not None:
            return {"ssl.truststore.location": path, "ssl.truststore.type": "PEM"}
        if (text := self.values.get("ssl.ca.pem")) is not None:
            return {"ssl.truststore.certificates": text, "ssl.truststore.type": "PEM"}
        return {}

    def _java_keystore(self, read_file: Callable[[str], str]) -> dict[str, str]:
        if (path := self.values.get("ssl.keystore.location")) is not None:
            password = self.values.get("ssl.keystore.password")
            config = {"ssl.keystore.location": path, "ssl.keystore.type": "PKCS12"}
            return config if password is None else config | {"ssl.keystore.password": password}
        chain = self._pem("ssl.certificate", read_file)
        if chain is None:
            return {}
        return {
            "ssl.keystore.certificate.chain": _blocks(chain, "CERTIFICATE", "ssl.certificate"),
            "ssl.keystore.key": MATCHES_REDACTION
            + _blocks(self._pem("ssl.key", read_file) or "", "PRIVATE KEY", "ssl.key"),
            "ssl.keystore.type": "PEM",
        }

    def _pem(self, stem: str, read_file: Callable[[str], str]) -> str | None:
        path = self.values.get(f"{stem}.location")
        if path is None:
            return self.values.get(f"{stem}.pem")
        try:
            return read_file(path)
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "not a PEM file"
            raise ConfigError(f"{stem}.location: cannot read {path} ({reason})") from None

    def _java_sasl(self) -> dict[str, str]:
        mechanism = self.values.get("sasl.mechanism")
        if mechanism is None:
            return {}
        config = {"sasl.mechanism": mechanism, "sasl.jaas.config": self._jaas(mechanism)}
        if mechanism == "OAUTHBEARER":
            endpoint = "sasl.oauthbearer.token.endpoint.url"
            config[endpoint] = self.values[endpoint]
            config["sasl.login.callback.handler.class"] = OIDC_HANDLER
        return config

    def _jaas(self, mechanism: str) -> str:
        """Return the login text: the user's own if there is one (its module may be shaded, as on Databricks)."""
        if (given := self.values.get("sasl.jaas.config")) is not None:
            return given
        options = " ".join(
            f"{name}={_jaas_quoted(self.values[key])}" for name, key in JAAS_TO_OPTION.items() if key in self.values
        )
        return f"{LOGIN_MODULES[mechanism]} required {options};"


def without_secrets(values: Mapping[str, str], text: str) -> str:
    """Return ``text`` of a client with these options, with every secret in it replaced."""
    for key in SECRETS:
        if secret := values.get(key):
            text = text.replace(secret, "(hidden)")
    return text


# ------------------------------------------------------------------------- reading what users write


def _canonical_names(options: Mapping[str, str]) -> dict[str, str]:
    given: dict[str, str] = {}
    for name, value in options.items():
        short = name.removeprefix("kafka.")
        key = ALIASES.get(short, short)
        if key in WITHOUT_EFFECT:
            raise ConfigError(f"Kafka option {name!r} has no effect: {WITHOUT_EFFECT[key]}")
        if key not in KNOWN:
            raise ConfigError(f"unknown Kafka option {name!r}, or one that cannot be set for both Kafka clients")
        _put(given, key, str(value).strip(), name)
    return given


def _put(values: dict[str, str], key: str, value: str, name: str) -> None:
    if values.setdefault(key, value) != value:
        raise ConfigError(f"Kafka option {name!r} is given twice with different values")


def _check_choices(given: dict[str, str]) -> None:
    """Bring the values of closed options into their proper case, or refuse them."""
    if given.get("ssl.endpoint.identification.algorithm") == "":
        given["ssl.endpoint.identification.algorithm"] = "none"
    for key, choices in CHOICES.items():
        if key not in given:
            continue
        proper = {choice.lower(): choice for choice in choices}.get(given[key].lower())
        if proper is None:
            raise ConfigError(f"Kafka option {key!r} must be one of {', '.join(choices)}")
        given[key] = proper


def _unify_sasl(given: dict[str, str]) -> dict[str, str]:
    """Read the credentials out of Java's login text, which librdkafka does not understand."""
    values = dict(given)
    handler = values.pop("sasl.login.callback.handler.class", OIDC_HANDLER)
    if not handler.endswith("OAuthBearerLoginCallbackHandler"):
        raise ConfigError("Kafka option 'sasl.login.callback.handler.class' cannot be translated for librdkafka")
    if (jaas := values.get("sasl.jaas.config")) is not None:
        for name, value in _jaas_options(jaas).items():
            if name in JAAS_TO_OPTION:
                _put(values, JAAS_TO_OPTION[name], value, JAAS_TO_OPTION[name])
    if values.get("sasl.mechanism") == "OAUTHBEARER":
        values.setdefault("sasl.oauthbearer.method", "oidc")
    return values


def _jaas_options(text: str) -> dict[str, str]:
    if not re.search(r"LoginModule\s+required\b", text):
        raise ConfigError("Kafka option 'sasl.jaas.config' must read '…LoginModule required …;'")
    found = {}
    for name, double, single, bare in _JAAS_OPTION.findall(text):
        found[name] = re.sub(r"\\(.)", r"\1", double) or single or bare
    return found


def _jaas_quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _unify_stores(given: dict[str, str]) -> dict[str, str]:
    """Rename Java's PEM stores to librdkafka's options; other trust stores it cannot read at all."""
    values = dict(given)
    truststore_type = values.pop("ssl.truststore.type", None)
    if "ssl.truststore.location" in values and truststore_type is None:
        raise ConfigError(
            "Kafka option 'ssl.truststore.location' needs ssl.truststore.type=PEM "
            "(librdkafka reads no JKS; export the certificates as PEM)"
        )
    _move(values, "ssl.truststore.location", "ssl.ca.location")
    _move(values, "ssl.truststore.certificates", "ssl.ca.pem")
    _move(values, "ssl.keystore.certificate.chain", "ssl.certificate.pem")
    _move(values, "ssl.keystore.key", "ssl.key.pem")
    return _unify_keystore_file(values)


def _unify_keystore_file(values: dict[str, str]) -> dict[str, str]:
    kind = values.pop("ssl.keystore.type", None)
    path = values.get("ssl.keystore.location")
    if path is None:
        return values
    kind = kind or ("PKCS12" if path.lower().endswith((".p12", ".pfx")) else None)
    if kind is None:
        raise ConfigError(
            "Kafka option 'ssl.keystore.location' needs ssl.keystore.type=PEM or PKCS12 (librdkafka reads no JKS)"
        )
    if kind == "PEM":
        _put(values, "ssl.certificate.location", path, "ssl.keystore.location")
        _put(values, "ssl.key.location", path, "ssl.keystore.location")
        del values["ssl.keystore.location"]
    return values


def _move(values: dict[str, str], old: str, new: str) -> None:
    if old in values:
        _put(values, new, values.pop(old), old)


def _check_complete(values: Mapping[str, str]) -> None:
    if not values.get("bootstrap.servers"):
        raise ConfigError("Kafka option 'bootstrap.servers' is missing")
    mechanism = values.get("sasl.mechanism")
    protocol = values.get("security.protocol", "PLAINTEXT")
    if protocol.startswith("SASL") and mechanism is None:
        raise ConfigError(f"Kafka option 'sasl.mechanism' is missing (security.protocol={protocol})")
    for key in _required_credentials(mechanism):
        if key not in values:
            raise ConfigError(f"Kafka option {key!r} is missing (sasl.mechanism={mechanism})")
    has_key = "ssl.key.location" in values or "ssl.key.pem" in values
    has_certificate = "ssl.certificate.location" in values or "ssl.certificate.pem" in values
    if has_key != has_certificate:
        missing = "ssl.certificate.location" if has_key else "ssl.key.location"
        raise ConfigError(f"Kafka option {missing!r} is missing (certificate and key go together)")


def _required_credentials(mechanism: str | None) -> tuple[str, ...]:
    if mechanism is None:
        return ()
    if mechanism == "OAUTHBEARER":
        names = ("client.id", "client.secret", "token.endpoint.url")
        return tuple(f"sasl.oauthbearer.{name}" for name in names)
    return ("sasl.username", "sasl.password")


def _blocks(pem: str, label: str, key: str) -> str:
    """Return the PEM blocks of one kind in a text that may hold others; Java refuses a mixed one."""
    pattern = rf"-----BEGIN ((?:ENCRYPTED )?{label})-----.*?-----END \1-----"
    found = [match[0] for match in re.finditer(pattern, pem, re.DOTALL)]
    if not found:
        hint = " in PKCS#8 form (openssl pkcs8 -topk8)" if label == "PRIVATE KEY" else ""
        raise ConfigError(f"Kafka option {key!r} holds no PEM {label.lower()}{hint}")
    return "\n".join(found)
