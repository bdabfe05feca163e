"""The micro-batch and its ports. No Spark, no Delta, no Kafka: these implement the ports.

One micro-batch reads its inputs (log ends, the acknowledgements of the records delivered before, the time), decides for
every share-partition that has something to do, appends what was decided in one commit, and only then lets effects
happen: records go to handlers. ``tests/twins`` has an in-memory twin of each port.
"""
