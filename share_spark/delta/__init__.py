"""Everything that touches Delta tables: the state log, the embedded topic log, dead letters.

An edge of the house: it implements the engine's ports on Delta and knows nothing of Kafka clients,
the gateway or the command line. Session configuration is never changed here; what a table needs is
a property of the table.
"""
