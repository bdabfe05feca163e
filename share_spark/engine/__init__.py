"""The micro-batch and its ports. No Spark, no Delta, no Kafka: packages for these implement the ports.

One micro-batch reads its inputs (log ends, the acknowledgements of the records delivered before, the time), decides for
every share-partition that has something to do, and appends all decisions in one commit. Only then the records go to
handlers. ``tests/twins`` has an in-memory twin of each port.
"""
