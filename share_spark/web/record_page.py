"""One record's life as HTML, and the form that asks for it. Pure."""

from __future__ import annotations

from collections.abc import Collection
from html import escape
from typing import NamedTuple
from urllib.parse import urlencode

from share_spark.audit.record_events import RecordEvent, RecordHistory, how_far_back, iso_time, nothing_known
from share_spark.model.texts import printable
from share_spark.web.document import cell, document, group_path, heads, place_and_time, way_back


class RecordPlace(NamedTuple):
    """The record that is asked for, as it was written."""

    topic: str = ""
    partition: str = ""
    offset: str = ""

    @property
    def fault(self) -> str:
        """The reason why there is no such place, empty if there may be one."""
        for name, text in (("partition", self.partition), ("offset", self.offset)):
            if not (text.isascii() and text.isdecimal() and len(text) < _MOST_DIGITS):
                return f"{name} {text!r} is not a number from 0 up"
        return "" if self.topic else "no topic is given"


_MOST_DIGITS = 19

NOWHERE = RecordPlace()
"""The place of a form that was not filled in yet."""


def record_path(group_id: str, place: RecordPlace) -> str:
    """Return the path of a record's page on the server."""
    return f"{group_path(group_id)}/record?{urlencode(place._asdict())}"


def record_form(group_id: str, topics: Collection[str], place: RecordPlace = NOWHERE, hint: str = "") -> str:
    """Return the form that asks for a record of one of ``topics``. ``hint``: HTML."""
    options = "".join(
        f"<option{' selected' * (topic == place.topic)}>{escape(topic)}</option>" for topic in sorted(topics)
    )
    numbers = "".join(
        f'<label>{name.capitalize()} <input id="record-{name}" name="{name}" type="number" min="0" required '
        f'value="{escape(text)}"></label>'
        for name, text in (("partition", place.partition), ("offset", place.offset))
    )
    fields = f'<label>Topic <select id="record-topic" name="topic">{options}</select></label>{numbers}'
    button = '<button id="record-show">Show its life</button>'
    form = f'<form id="record" class="fields" action="{group_path(group_id)}/record">{fields}{button}</form>'
    # The script leaves the card in its place: somebody may be typing.
    return f'<div class="card" id="one-record" data-keep="1"><h2>One record</h2>{form}{hint}</div>'


def record_page(location: str, at_ms: int, found: RecordHistory, form: str) -> str:
    """Return the page of a record's life, live: later deliveries are added."""
    title = f"{found.topic}, partition {found.partition}, offset {found.offset}"
    if found.events:
        rows = "".join(map(_row, found.events))
        events = f'<table class="cards events">{heads(*_COLUMNS, numbers=_NUMBERS)}<tbody>{rows}</tbody></table>'
    else:
        events = f"<p>{_sentence(nothing_known(found))}</p>"
    note = f'<p class="note">{_sentence(how_far_back(found))}</p>'
    section = f'<section><div class="title"><h2>{escape(printable(title))}</h2></div>{events}{note}</section>'
    body = f"{way_back(found.group_id)}{section}{form}"
    return document(f"A record of {found.group_id}", place_and_time(location, at_ms), body, live=True)


def no_record_page(location: str, at_ms: int, group_id: str, fault: str, form: str) -> str:
    """Return a page in its place: why it is not there, and the form to ask for another."""
    body = f'<p class="fault" role="alert">{escape(fault)}</p>{form}'
    return document("No such record", place_and_time(location, at_ms), way_back(group_id) + body, live=True)


_COLUMNS = ("Written at", "Event", "Error", "Delivery count", "Member", "Locked until", "Micro-batch", "Epoch", "Note")
_NUMBERS = ("Delivery count", "Micro-batch", "Epoch")


def _row(event: RecordEvent) -> str:
    deadline = "" if event.lock_deadline_ms is None else iso_time(event.lock_deadline_ms * 1_000)
    texts = {
        "Written at": iso_time(event.written.written_at_us),
        "Event": event.event,
        "Error": event.error or "",
        "Delivery count": "" if event.delivery_count is None else f"{event.delivery_count:,}",
        "Member": event.member_id or "",
        "Locked until": deadline,
        "Micro-batch": str(event.written.batch_id),
        "Epoch": str(event.written.writer_epoch),
        "Note": event.note or "",
    }
    cells = (cell(name, escape(printable(text)), is_number=name in _NUMBERS) for name, text in texts.items())
    return f"<tr>{''.join(cells)}</tr>"


def _sentence(text: str) -> str:
    return f"{escape(text[:1].upper() + text[1:])}."
