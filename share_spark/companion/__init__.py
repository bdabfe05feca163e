"""Handlers that wait: their calls run in a process beside the driver, many at a time, and go on from micro-batch to
micro-batch.

``delivery`` is the engine's port; it starts the process, hands records over and takes answers in. ``program`` is that
process: one event loop, in which the calls of the handler run. Both speak ``messages`` over one connection.
"""
