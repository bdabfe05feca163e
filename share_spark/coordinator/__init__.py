"""The share coordinator, pure: what durable state of share-partitions means and how writes to it combine.

What may not enter: pyspark, os, time, random, threading, socket, logging, and the sister room ``partition``.
"""

from share_spark.coordinator.combine import combine_batches

__all__ = ["combine_batches"]
