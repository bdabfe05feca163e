"""The public API for handlers that run inside Spark."""
