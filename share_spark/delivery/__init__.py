"""Delivery: acquired records go to a handler inside Spark's Python workers, acknowledgements come back.

``deliver`` has the engine's port and the Spark job, ``worker`` the code of a task, ``calling`` the calls, ``ledger``
the file that outlives a worker, ``runs`` and ``result`` the results.
"""
