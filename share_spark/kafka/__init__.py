"""Access to Kafka: client options, log ends, ranges of records, dead letters.

Implements the engine's ports on a broker. Administration goes through librdkafka (``confluent_kafka``), records through
Spark's own Kafka source and sink in the JVM.
"""
