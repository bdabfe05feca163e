"""Share groups and dead letters without Spark: the tables are read as files, so that an answer takes less than a
second.

``state_reader`` reads the state, ``log_ends`` asks the topics for their ends, ``share_group_admin`` joins both as in
Kafka's own tools (KIP-932, ``kafka-share-groups.sh``). ``stored_letters`` reads and marks dead letters, ``redrive``
sends them again, ``dead_letters`` is what users call.
"""
