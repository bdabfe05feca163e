"""The names of connection options in the two Kafka clients, as tables.

Only facts about names and values: the name of an option in Java and in librdkafka, the client roles that use it, and
its values. ``options`` combines them.

Sources: Kafka's consumer and producer configs, librdkafka's CONFIGURATION.md, KIP-651 (PEM stores), KIP-768 (OAuth
client credentials).
"""

from __future__ import annotations

BOTH = (
    "bootstrap.servers",
    "client.id",
    "connections.max.idle.ms",
    "metadata.max.age.ms",
    "reconnect.backoff.max.ms",
    "reconnect.backoff.ms",
    "retry.backoff.ms",
    "security.protocol",
    "socket.connection.setup.timeout.ms",
)
"""Options of the same name and meaning in both clients, for every role."""

RENAMED = {
    "receive.buffer.bytes": "socket.receive.buffer.bytes",
    "request.timeout.ms": "socket.timeout.ms",
    "send.buffer.bytes": "socket.send.buffer.bytes",
}
"""librdkafka's name by Java's, for every role."""

CONSUMER = (
    "client.rack",
    "fetch.max.bytes",
    "fetch.max.wait.ms",
    "fetch.min.bytes",
    "isolation.level",
    "max.partition.fetch.bytes",
    "max.poll.records",
)
"""Options of the readers of records only: the Java client, and librdkafka for many topic-partitions."""

RENAMED_CONSUMER = {
    "fetch.max.wait.ms": "fetch.wait.max.ms",
    "max.partition.fetch.bytes": "fetch.message.max.bytes",
}
"""librdkafka's name by Java's, of those in CONSUMER. It has no ``max.poll.records``."""

PRODUCER = (
    "acks",
    "batch.size",
    "compression.type",
    "delivery.timeout.ms",
    "enable.idempotence",
    "linger.ms",
    "max.block.ms",
    "max.request.size",
)
"""Options of the dead-letter writer only, which is the Java client."""

SECURITY = (
    "sasl.jaas.config",
    "sasl.mechanism",
    "sasl.password",
    "sasl.username",
    "ssl.ca.location",
    "ssl.ca.pem",
    "ssl.certificate.location",
    "ssl.certificate.pem",
    "ssl.endpoint.identification.algorithm",
    "ssl.key.location",
    "ssl.key.password",
    "ssl.key.pem",
    "ssl.keystore.certificate.chain",
    "ssl.keystore.key",
    "ssl.keystore.location",
    "ssl.keystore.password",
    "ssl.keystore.type",
    "ssl.truststore.certificates",
    "ssl.truststore.location",
    "ssl.truststore.type",
    "sasl.oauthbearer.client.id",
    "sasl.oauthbearer.client.secret",
    "sasl.oauthbearer.method",
    "sasl.oauthbearer.scope",
    "sasl.oauthbearer.token.endpoint.url",
    "sasl.login.callback.handler.class",
)

ALIASES = {
    "metadata.broker.list": "bootstrap.servers",
    "sasl.mechanisms": "sasl.mechanism",
    **{librdkafka: java for java, librdkafka in (RENAMED | RENAMED_CONSUMER).items()},
}

KNOWN = frozenset((*BOTH, *RENAMED, *CONSUMER, *PRODUCER, *SECURITY))

WITHOUT_EFFECT = {
    "group.id": "no consumer group is joined; the share group is --group",
    "group.instance.id": "no consumer group is joined",
    "group.protocol": "no consumer group is joined",
    "heartbeat.interval.ms": "no consumer group is joined",
    "max.poll.interval.ms": "no consumer group is joined",
    "partition.assignment.strategy": "no consumer group is joined",
    "session.timeout.ms": "no consumer group is joined",
    "auto.commit.interval.ms": "no offsets are committed to Kafka",
    "enable.auto.commit": "no offsets are committed to Kafka",
    "auto.offset.reset": "share.auto.offset.reset says where a group begins",
}
"""Options of a consumer that a reader of acquired records does not use, with the reason."""

PLAIN_TEXT = frozenset(KNOWN - set(SECURITY)) | {"sasl.mechanism", "ssl.keystore.type"}
"""Options whose value may be shown; all others are treated as secrets."""

SECRETS = (
    "sasl.jaas.config",
    "sasl.oauthbearer.client.secret",
    "sasl.password",
    "ssl.key.password",
    "ssl.key.pem",
    "ssl.keystore.password",
)
"""Options whose values must not be in any text, not even in a client's own error."""

CHOICES = {
    "isolation.level": ("read_uncommitted", "read_committed"),
    "sasl.mechanism": ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"),
    "security.protocol": ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
    "ssl.endpoint.identification.algorithm": ("https", "none"),
    "ssl.keystore.type": ("PEM", "PKCS12"),
    "ssl.truststore.type": ("PEM",),
    "sasl.oauthbearer.method": ("oidc",),
}

LOGIN_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "OAUTHBEARER": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule",
}

OIDC_HANDLER = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
"""Java's client-credentials login as of kafka-clients 3.9, which is part of Spark 4.0's connector."""

JAAS_TO_OPTION = {
    "username": "sasl.username",
    "password": "sasl.password",
    "clientId": "sasl.oauthbearer.client.id",
    "clientSecret": "sasl.oauthbearer.client.secret",
    "scope": "sasl.oauthbearer.scope",
}
