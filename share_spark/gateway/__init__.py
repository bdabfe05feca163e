"""The front door for Kafka's own clients: an asyncio server that speaks the share-group part of Kafka's protocol.

What a request means is up to its handler (``server.Handler``); here are only the bytes and the connections.
"""
