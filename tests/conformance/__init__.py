"""Conformance with Apache Kafka 4.2.0: see ``__main__``."""
