"""Values that all packages use: keys, offset ranges, requests, records, errors, settings.

Nothing here does anything: no I/O, no clock, no randomness, no Spark; standard library only. All other packages may
import this one, and it imports none of them. Names are KIP-932's (group, topic id, share-partition, SPSO, SPEO,
in-flight, delivery count, acquisition lock); R-numbers in docstrings cite the numbered rules of ``docs/rules.md``.
"""
