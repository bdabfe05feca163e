"""Everything that speaks to Kafka: client options, log ends, record ranges, dead letters.

An edge of the house: it implements the engine's ports on a broker. Administration goes through
librdkafka (``confluent_kafka``), records through Spark's own Kafka source and sink in the JVM.
Nothing of Delta, of the gateway or of the command line may enter.
"""
