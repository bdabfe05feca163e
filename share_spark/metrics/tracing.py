"""Micro-batches as OpenTelemetry traces: a span for each that did something, with a span below it for each step.

The spans are made when the micro-batch is over, out of its progress. So they cost it nothing while it runs, and what
others trace meanwhile is not below them. Where they go is up to the provider that the process has set; without one, or
without the package `opentelemetry-api`, there are none.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from share_spark.engine.progress import COUNTS, MicroBatchProgress

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

MICRO_BATCH = "share_spark micro-batch"
"""The name of a micro-batch's span; those of steps are called as in ``MicroBatchProgress.steps``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatchSpans:
    """The spans of one group. ``clock``: nanoseconds since the epoch."""

    group_id: str
    tracer: Tracer
    clock: Callable[[], int] = time.time_ns

    def note(self, progress: MicroBatchProgress) -> None:
        """Make the spans of a micro-batch that has just ended."""
        from opentelemetry import trace

        durations_ns = [(name, int(seconds * 1e9)) for name, seconds in progress.steps.items()]
        end_ns = self.clock()
        begin_ns = end_ns - sum(duration_ns for _, duration_ns in durations_ns)
        span = self.tracer.start_span(MICRO_BATCH, attributes=self._attributes(progress), start_time=begin_ns)
        below = trace.set_span_in_context(span)
        for name, duration_ns in durations_ns:
            step = self.tracer.start_span(name, context=below, start_time=begin_ns)
            begin_ns += duration_ns
            step.end(begin_ns)
        span.end(end_ns)

    def _attributes(self, progress: MicroBatchProgress) -> dict[str, str | int]:
        counts = {name: getattr(progress, name) for name in ("batch_id", *COUNTS, "lag")}
        return {"share_spark.group": self.group_id, **{f"share_spark.{name}": count for name, count in counts.items()}}


def spans_of(group_id: str) -> MicroBatchSpans | None:
    """Return the spans of a group that starts; None without the package."""
    try:
        from opentelemetry import trace
    except ImportError:
        return None
    return MicroBatchSpans(group_id=group_id, tracer=trace.get_tracer("share_spark"))
