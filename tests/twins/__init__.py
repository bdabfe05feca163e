"""In-memory twins of the engine's ports: a whole share group without Spark, Delta or Kafka, in milliseconds. For the
simulation, and for tests of your own handlers and policies."""
