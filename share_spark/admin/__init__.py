"""Look at share groups without Spark: the tables are read as files, so that an answer takes less than a second.

``state_reader`` reads the state, ``log_ends`` asks the topics how far they go, ``share_group_admin`` puts both together
as Kafka's own tools show it (KIP-932, ``kafka-share-groups.sh``).
"""
