"""Share groups as a page: in a file (`share-spark report`), or served live (`share-spark ui`). No Spark, no JVM.

    admin  →  pictures (what is to be seen, as values)  →  page (HTML as text)  →  a file, or server

``offset_line`` and ``drawings`` make the pictures of share-partitions, ``charts`` those of a group over time. What is
read again and again for them is kept by ``repeated_reads``; ``server`` answers by path, and so does ``cluster_page``
for a Kafka cluster's own groups. All else is pure. A page is one document with its style and script inside: no other
request but for pages of the same server, and a policy in its head that forbids any.
"""
