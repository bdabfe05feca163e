"""The share coordinator on Delta (Initialize, Read, Write, Delete, ReadSummary), for clients outside Spark.

``ShareGroup`` does not use it, and no Spark streaming job runs here. It is the storage side of the coming gateway that
speaks Kafka's protocol.
"""
