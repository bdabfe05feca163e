"""Handlers that wait: their calls run in a process of their own, many at a time, and go on from micro-batch to
micro-batch. It is beside the driver, or on a cluster beside each executor.

``delivery`` is the engine's port; it has processes started (``starts``, ``executors``), hands records over and takes
answers in. ``program`` is such a process: one event loop, in which the calls of the handler run. Both speak
``messages`` over one connection.
"""
