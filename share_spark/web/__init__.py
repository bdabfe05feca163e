"""Share groups as a page: in a file (`share-spark report`), or served live (`share-spark ui`). No Spark, no JVM.

    admin  →  pictures (what is to be seen, as values)  →  page (HTML as text)  →  a file, or server

``offset_line`` and ``drawings`` make the pictures of share-partitions; all but ``server`` is pure. A page is one
document with its style and script inside: no other request, and a policy in its head that forbids any.
"""
