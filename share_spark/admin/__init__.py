"""Look at share groups and dead letters without Spark: the tables are read as files, so that an answer takes less than
a second.

``state_reader`` reads the state, ``log_ends`` asks the topics how far they go, ``share_group_admin`` puts both together
as Kafka's own tools show it (KIP-932, ``kafka-share-groups.sh``). ``stored_letters`` reads and marks dead letters,
``redrive`` sends them again, ``dead_letters`` is what users call.
"""
