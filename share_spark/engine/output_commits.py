"""The commits of an engine's output to its sink."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from share_spark.engine.answers import output_lost, output_refused
from share_spark.engine.delivery_port import AcknowledgedSpans
from share_spark.engine.ports import OutputSink
from share_spark.model.errors import OutputLostError, OutputRefusedError, OutputUnknownError, SinkError, StateError
from share_spark.model.ids import BatchStamp, TopicPartition

_log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class OutputCommits:
    """The commits of one engine. ``sink``: None for a run without output. ``_in_doubt``: a commit has failed, and may
    have happened."""

    sink: OutputSink | None
    _in_doubt: bool = False

    @property
    def decides(self) -> bool:
        """Whether rows decide if an answer is valid."""
        return self.sink is not None and self.sink.has_output

    def refuse_if_in_doubt(self) -> None:
        """Raise OutputUnknownError if a commit is in doubt: what the engine gives back now may be decided already."""
        if self._in_doubt:
            raise OutputUnknownError(
                "it is not known whether the last output is in the sink; the next engine finds out"
            )

    def commit(self, stamp: BatchStamp, answers: AcknowledgedSpans, *, is_explained: bool) -> AcknowledgedSpans:
        """Commit the output, and return the answers that are valid. An accepted record is not if its rows died with an
        executor, or if the sink refuses these rows alone. A refusal of all is no delivery failure: everything is given
        back as if it had not been tried."""
        if self.sink is None or not self.decides:
            return answers
        self._in_doubt = True
        try:
            self.sink.commit(stamp, answers)
        except OutputUnknownError:
            raise
        except (SinkError, StateError):
            self._in_doubt = False
            raise
        except OutputRefusedError as fault:
            _log.warning("%s; these count as failed", fault)
            answers = _without_refused(answers, fault)
        except OutputLostError as fault:
            _log.warning("%s; its records are delivered again", fault)
            answers = {key: output_lost(span, str(fault), is_explained=is_explained) for key, span in answers.items()}
        self._in_doubt = False
        return answers

    def commit_left(self, stamp: BatchStamp, answers: AcknowledgedSpans, member_id: str | None) -> bool:
        """Commit the output that an engine which has ended left with its workers. Return whether the answers are valid:
        not if the rows are lost. Raises as ``commit``."""
        assert self.sink is not None, "nothing to commit to"
        self._in_doubt = True
        try:
            self.sink.commit(stamp, answers, member_id)
        except OutputUnknownError:
            raise
        except (SinkError, StateError):
            self._in_doubt = False
            raise
        except OutputLostError:
            self._in_doubt = False
            return False
        self._in_doubt = False
        return True

    def absorbed(self) -> None:
        """Note that a valid state row contains the answers of the last commit."""
        if self.sink is not None:
            self.sink.forget()


def _without_refused(answers: AcknowledgedSpans, fault: OutputRefusedError) -> AcknowledgedSpans:
    errors: dict[TopicPartition, dict[int, str]] = {}
    for (topic, partition, offset), error in fault.errors.items():
        errors.setdefault(TopicPartition(topic, partition), {})[offset] = error
    return {key: output_refused(span, errors.get(span.partition, {})) for key, span in answers.items()}
