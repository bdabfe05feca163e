"""The embedded topic log: topics in a Delta table in Kafka's shape, for use without a broker."""
