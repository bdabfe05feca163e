"""Kafka share groups (KIP-932) on Spark Structured Streaming and Delta."""
