"""The only package that uses the private API of Spark, Delta and the JVM.

Session and jars, files through Hadoop, Delta's log and transactions, locally checkpointed frames, cloned sessions,
Python workers, error texts. The rest of the project calls these functions and knows nothing of ``_jvm``.
"""
