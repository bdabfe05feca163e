"""Micro-batches as OpenTelemetry spans."""

from __future__ import annotations

import sys

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from share_spark.engine.progress import MicroBatchProgress
from share_spark.metrics.tracing import MICRO_BATCH, MicroBatchSpans, spans_of
from tests.support.engine_world import GROUP, InMemoryGroup

END_NS = 10**18


def traced(progress: MicroBatchProgress) -> list[ReadableSpan]:
    """The spans of a micro-batch, in the order in which they ended."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("test")
    MicroBatchSpans(group_id=GROUP, tracer=tracer, clock=lambda: END_NS).note(progress)
    return list(exporter.get_finished_spans())


@pytest.fixture
def progress() -> MicroBatchProgress:
    world = InMemoryGroup()
    world.produce(3)
    return world.engine().run()


def test_a_span_for_the_micro_batch_and_one_below_it_for_each_step(progress: MicroBatchProgress) -> None:
    *steps, whole = traced(progress)
    assert [step.name for step in steps] == list(progress.steps) != []
    assert whole.name == MICRO_BATCH
    assert whole.parent is None
    assert [step.parent for step in steps] == [whole.context] * len(steps)


def test_steps_follow_each_other_and_fill_it(progress: MicroBatchProgress) -> None:
    *steps, whole = traced(progress)
    assert [step.start_time for step in steps] == [whole.start_time, *(step.end_time for step in steps[:-1])]
    assert steps[-1].end_time == whole.end_time == END_NS
    seconds = [(step.end_time - step.start_time) / 1e9 for step in steps]
    assert seconds == pytest.approx(list(progress.steps.values()), abs=1e-8)


def test_it_says_what_the_micro_batch_did(progress: MicroBatchProgress) -> None:
    *_, whole = traced(progress)
    assert whole.attributes is not None
    names = ("group", "batch_id", "acquired", "accepted", "lag")
    assert [whole.attributes[f"share_spark.{name}"] for name in names] == [GROUP, 0, 3, 0, 3]


def test_without_the_package_there_is_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    assert spans_of(GROUP) is None


def test_without_a_provider_nothing_is_recorded(progress: MicroBatchProgress) -> None:
    spans = spans_of(GROUP)
    assert spans is not None
    spans.note(progress)
    assert not spans.tracer.start_span("x").is_recording()
