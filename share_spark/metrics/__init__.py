"""Metrics of running share groups, in Prometheus' form; and their micro-batches as OpenTelemetry traces (``tracing``).

``definitions`` lists them, ``totals`` adds up what micro-batches did, ``oldest`` tells for how long records wait; these
are pure. ``families`` puts them together, and ``endpoint`` serves them. Counters are per topic and cost a micro-batch
some microseconds; what there is per share-partition is worked out only when somebody asks.
"""
