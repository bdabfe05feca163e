"""The share coordinator on Delta (Initialize, Read, Write, Delete, ReadSummary), for clients outside Spark.

No Spark streaming job comes here: ``ShareGroup`` does not use it. It is the storage side of the coming gateway that
speaks Kafka's protocol.
"""
