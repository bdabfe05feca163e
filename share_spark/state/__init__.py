"""The state log of share groups and the live state: tables, rows, commits, segments, claims, the status table.

The log is a Delta table with one blind append per micro-batch; the live state is a value on the driver, a cache of the
log. Implements the engine's ``ShareStateStore``.
"""
