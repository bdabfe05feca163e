"""What only a Kafka fetch needs: acquisition by log batches, and throttled redelivery. The Spark engine acquires by
offsets alone (``partition.acquire``); these modes serve the gateway, and are compared with Kafka's own classes."""
