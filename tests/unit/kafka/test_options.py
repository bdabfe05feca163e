"""One set of options, two clients."""

from __future__ import annotations

from pathlib import Path

import pytest

from share_spark.kafka.options import KafkaOptions
from share_spark.model.errors import ConfigError

BASE = {"bootstrap.servers": "k1:9092,k2:9092"}
CERTIFICATE = "-----BEGIN CERTIFICATE-----\nQ0VSVA==\n-----END CERTIFICATE-----"
KEY = "-----BEGIN PRIVATE KEY-----\nS0VZ\n-----END PRIVATE KEY-----"
PLAIN = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}
LOGIN = {"sasl.username": "ann", "sasl.password": 'p"w\\d; x'}
JAAS = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="ann" password="p\\"w\\\\d; x";'


def parse(**options: str) -> KafkaOptions:
    return KafkaOptions.parse(BASE | options)


def without_base(config: dict[str, str]) -> dict[str, str]:
    return {key: value for key, value in config.items() if not key.endswith("bootstrap.servers")}


def test_the_servers_are_enough() -> None:
    options = KafkaOptions.parse(BASE)
    assert options.librdkafka() == BASE
    assert options.spark_source() == {"kafka.bootstrap.servers": "k1:9092,k2:9092"}
    assert options.spark_sink() == {"kafka.bootstrap.servers": "k1:9092,k2:9092"}
    assert options.read_committed is False


@pytest.mark.parametrize("prefix", ["", "kafka."])
def test_the_prefix_is_optional(prefix: str) -> None:
    given = {f"{prefix}bootstrap.servers": "k:1", f"{prefix}isolation.level": "READ_COMMITTED"}
    options = KafkaOptions.parse(given)
    assert options.read_committed
    assert options.bootstrap_servers == "k:1"
    assert options.spark_source()["kafka.isolation.level"] == "read_committed"


def test_a_login_of_librdkafka_becomes_javas() -> None:
    options = parse(**PLAIN, **LOGIN)
    assert without_base(options.librdkafka()) == PLAIN | LOGIN
    assert options.spark_source()["kafka.sasl.jaas.config"] == JAAS
    assert options.spark_sink()["kafka.sasl.mechanism"] == "PLAIN"


def test_a_login_of_java_becomes_librdkafkas_and_stays_as_it_is() -> None:
    shaded = f"kafkashaded.{JAAS}"
    options = parse(**PLAIN, **{"kafka.sasl.jaas.config": shaded})
    assert without_base(options.librdkafka()) == PLAIN | LOGIN
    assert options.spark_source()["kafka.sasl.jaas.config"] == shaded


def test_scram_under_either_name() -> None:
    options = parse(**{"sasl.mechanisms": "SCRAM-SHA-512"}, **LOGIN)
    assert options.librdkafka()["sasl.mechanism"] == "SCRAM-SHA-512"
    assert "ScramLoginModule required" in options.spark_source()["kafka.sasl.jaas.config"]


def test_oauth_client_credentials() -> None:
    options = parse(
        **{
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.token.endpoint.url": "https://id/token",
            "sasl.jaas.config": "x.OAuthBearerLoginModule required clientId='me' clientSecret=s3;",
        }
    )
    config = options.librdkafka()
    assert config["sasl.oauthbearer.method"] == "oidc"
    assert config["sasl.oauthbearer.client.id"] == "me"
    assert config["sasl.oauthbearer.client.secret"] == "s3"
    java = options.spark_source()
    assert java["kafka.sasl.login.callback.handler.class"].endswith("OAuthBearerLoginCallbackHandler")
    assert java["kafka.sasl.oauthbearer.token.endpoint.url"] == "https://id/token"


def test_certificate_authorities() -> None:
    for given in (
        {"ssl.ca.location": "/ca.pem"},
        {"ssl.truststore.location": "/ca.pem", "ssl.truststore.type": "pem"},
    ):
        options = parse(**given)
        assert without_base(options.librdkafka()) == {"ssl.ca.location": "/ca.pem"}
        assert without_base(options.spark_source()) == {
            "kafka.ssl.truststore.location": "/ca.pem",
            "kafka.ssl.truststore.type": "PEM",
        }


def test_a_client_certificate_in_files(tmp_path: Path) -> None:
    (tmp_path / "c.pem").write_text(f"Bag Attributes\n{CERTIFICATE}\n")
    (tmp_path / "k.pem").write_text(f"{KEY}\n")
    given = {
        "ssl.certificate.location": str(tmp_path / "c.pem"),
        "ssl.key.location": str(tmp_path / "k.pem"),
        "ssl.key.password": "pw",
    }
    options = parse(**given)
    assert without_base(options.librdkafka()) == given
    assert without_base(options.spark_source()) == {
        "kafka.ssl.keystore.certificate.chain": CERTIFICATE,
        "kafka.ssl.keystore.key": f"secret key\n{KEY}",
        "kafka.ssl.keystore.type": "PEM",
        "kafka.ssl.key.password": "pw",
    }


def test_a_pem_keystore_of_java_is_one_file_for_both(tmp_path: Path) -> None:
    store = tmp_path / "store.pem"
    store.write_text(f"{KEY}\n{CERTIFICATE}\n{CERTIFICATE}\n")
    options = parse(**{"ssl.keystore.location": str(store), "ssl.keystore.type": "PEM"})
    config = options.librdkafka()
    assert config["ssl.certificate.location"] == config["ssl.key.location"] == str(store)
    assert options.spark_source()["kafka.ssl.keystore.certificate.chain"].count("BEGIN") == 2


def test_a_pkcs12_keystore() -> None:
    given = {"ssl.keystore.location": "/me.p12", "ssl.keystore.password": "pw"}
    options = parse(**given)
    assert without_base(options.librdkafka()) == given
    assert options.spark_source()["kafka.ssl.keystore.type"] == "PKCS12"


@pytest.mark.parametrize("given", ["", "none"])
def test_no_check_of_the_host_name(given: str) -> None:
    options = parse(**{"ssl.endpoint.identification.algorithm": given})
    assert options.librdkafka()["ssl.endpoint.identification.algorithm"] == "none"
    assert options.spark_source()["kafka.ssl.endpoint.identification.algorithm"] == ""


def test_roles_get_what_concerns_them() -> None:
    options = parse(**{"request.timeout.ms": "5000", "max.poll.records": "9", "acks": "all", "client.id": "me"})
    assert without_base(options.librdkafka()) == {"client.id": "me", "socket.timeout.ms": "5000"}
    assert set(without_base(options.spark_source())) == {
        "kafka.client.id",
        "kafka.request.timeout.ms",
        "kafka.max.poll.records",
    }
    assert options.spark_sink()["kafka.acks"] == "all"
    assert "kafka.max.poll.records" not in options.spark_sink()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"kafka.no.such": "1"}, "unknown Kafka option 'kafka.no.such'"),
        ({"enable.ssl.certificate.verification": "false"}, "unknown Kafka option"),
        ({"isolation.level": "serializable"}, "'isolation.level' must be one of"),
        ({"security.protocol": "TLS"}, "'security.protocol' must be one of"),
        ({"sasl.mechanism": "GSSAPI"}, "'sasl.mechanism' must be one of"),
        ({"sasl.mechanism": "PLAIN", "sasl.username": "a"}, "'sasl.password' is missing"),
        ({"security.protocol": "SASL_SSL"}, "'sasl.mechanism' is missing"),
        ({"sasl.mechanism": "PLAIN", "sasl.jaas.config": "secret"}, "'sasl.jaas.config' must read"),
        ({"ssl.truststore.location": "/t.jks"}, "needs ssl.truststore.type=PEM"),
        ({"ssl.truststore.type": "JKS"}, "'ssl.truststore.type' must be one of PEM"),
        ({"ssl.keystore.location": "/k.jks"}, "needs ssl.keystore.type=PEM or PKCS12"),
        ({"ssl.key.location": "/k.pem"}, "'ssl.certificate.location' is missing"),
        ({"client.id": "a", "kafka.client.id": "b"}, "'kafka.client.id' is given twice"),
        ({"bootstrap.servers": ""}, "'bootstrap.servers' is missing"),
    ],
)
def test_refusals_name_the_key(options: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        KafkaOptions.parse(BASE | options)
    assert "\n" not in str(caught.value)


def test_an_old_key_format_is_refused_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "c.pem").write_text(CERTIFICATE)
    (tmp_path / "k.pem").write_text(KEY.replace("PRIVATE KEY", "RSA PRIVATE KEY"))
    options = parse(
        **{
            "ssl.certificate.location": str(tmp_path / "c.pem"),
            "ssl.key.location": str(tmp_path / "k.pem"),
        }
    )
    with pytest.raises(ConfigError, match="openssl pkcs8 -topk8"):
        options.spark_source()
    missing = parse(**{"ssl.certificate.location": "/none.pem", "ssl.key.location": "/none.pem"})
    with pytest.raises(ConfigError, match=r"cannot read /none.pem \(No such file"):
        missing.spark_source()


def test_secrets_are_never_shown() -> None:
    secrets = ["hunter2", "topsecret", "S0VZ"]
    options = parse(
        **PLAIN,
        **{"sasl.username": "ann", "sasl.password": "hunter2", "ssl.key.password": "topsecret"},
        **{"ssl.key.pem": KEY, "ssl.certificate.pem": CERTIFICATE},
    )
    for text in (repr(options), str(options), f"{options}"):
        assert not any(secret in text for secret in secrets)
        assert "bootstrap.servers=k1:9092,k2:9092" in text
    with pytest.raises(ConfigError) as caught:
        parse(**PLAIN, **{"sasl.password": "hunter2", "kafka.sasl.password": "topsecret"})
    assert not any(secret in str(caught.value) for secret in secrets)


@pytest.mark.parametrize("name", ["group.id", "kafka.auto.offset.reset", "enable.auto.commit", "session.timeout.ms"])
def test_what_has_no_effect_is_refused_and_says_why(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"^Kafka option '{name}' has no effect: \w+"):
        parse(**{name: "x"})


def test_a_rack_is_used_by_both_readers() -> None:
    options = parse(**{"client.rack": "eu-1a"})
    assert options.librdkafka_consumer()["client.rack"] == "eu-1a"
    assert options.spark_source()["kafka.client.rack"] == "eu-1a"
