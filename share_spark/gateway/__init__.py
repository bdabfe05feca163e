"""The front door: Kafka's share consumers, unmodified, as members of a group whose state is in Delta.

    client ── frames ──> server (one event loop)  ->  service: what a request means  ->  answer
                                                        │ asks, as values     ▲ after the commit
                                                        ▼                     │
                          client_queue     micro-batch: plan, decide, append, answer      (group_host: a plain loop)

``service`` has the coordinator's and the sessions' answers from ``coordinator``, which is pure. What changes the state
of share-partitions goes through the engine's micro-batch, as everything else does (``engine.client_asks``). Records are
read beside it (``read_ahead``), and an answer leaves only after the commit that it depends on.
"""
