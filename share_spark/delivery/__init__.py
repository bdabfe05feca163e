"""Delivery: acquired records go to a handler inside Spark's Python workers, acknowledgements come back.

``deliver`` holds the engine's port and the Spark job, ``worker`` what runs in a task, ``calling`` the calls, ``ledger``
the file that outlives a worker, ``runs`` and ``result`` what comes back.
"""
