"""The micro-batch and its ports.

One micro-batch reads its inputs (log ends, the acknowledgements of the records handed out before, the time),
decides for every share-partition that has something to do, appends what was decided in one commit, and only then
lets effects happen:
records go to handlers. The engine knows topic logs, the state store, handlers and dead letters only as ports; each port
has an in-memory twin here, for tests and for the simulation. No Kafka and no Delta below this line.
"""
