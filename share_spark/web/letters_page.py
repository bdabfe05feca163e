"""Dead letters as HTML: the errors of a group, the letters of an error. Pure; what is in a record is foreign text, and
all of it is escaped."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from html import escape

from share_spark.admin.letter_text import letter_facts, letter_time, one_line, payload_text
from share_spark.admin.letters import Letter, microseconds
from share_spark.admin.letters_by_error import LettersByError
from share_spark.model.texts import printable
from share_spark.web.document import cell, document, group_path, heads, place_and_time, text_cell, way_back
from share_spark.web.drawings import times, utc
from share_spark.web.pictures import ErrorPicture, GroupPicture, LettersPicture
from share_spark.web.record_page import RecordPlace, record_path

_MOST_SHOWN, _LONGEST_HEADER, _LONGEST_ERROR, _LONGEST_TITLE = 4_000, 400, 4_000, 160
"""The lengths, in characters, at which texts are cut."""

_OPEN_LETTERS = 3
"""The number of letters up to which all are unfolded at first."""


def errors_table(group: GroupPicture) -> str:
    """Return the errors of a live page: each is a link to its letters."""
    return _part(group, "".join(_row(one, _link(group.group_id, one), _example_link(one)) for one in _errors(group)))


def errors_in_report(group: GroupPicture) -> str:
    """Return the errors of a report, above those of their letters that the picture has."""
    rows = "".join(_row(one, escape(_title(one)), escape(_example(one))) for one in _errors(group))
    letters = "".join(_of_error(one) for one in _errors(group) if one.letters)
    return _part(group, rows) + letters


def letters_page(location: str, at_ms: int, letters: LettersPicture, one: ErrorPicture) -> str:
    """Return the page of an error's letters, live."""
    error = one.error
    counts = (
        f"{error.count:,} in {letters.table}, the first of {_to_the_second(error.first_seen)}, the last of "
        f"{_to_the_second(error.last_seen)}; {error.redriven:,} redriven. Newest first, {len(one.letters):,} are shown."
    )
    more = "" if error.error is None else _pre(_cut("\n".join(map(printable, error.error.split("\n"))), _LONGEST_ERROR))
    parts = [
        way_back(error.group_id),
        f'<section><div class="title"><h2>{escape(one_line(error.reason, _LONGEST_TITLE))}</h2></div>{more}',
        f'<p class="note">{escape(counts)}</p>{_cut_note(letters)}{_letters(one, live=True)}</section>',
    ]
    return document(f"Dead letters of {error.group_id}", place_and_time(location, at_ms), "".join(parts), live=True)


def _errors(group: GroupPicture) -> tuple[ErrorPicture, ...]:
    return () if group.letters is None else tuple(group.letters.errors)


def _part(group: GroupPicture, rows: str) -> str:
    title, found = "<h3>Dead letters by error</h3>", group.letters
    if found is None:
        return f'{title}<p class="note">It is not known in which table they are: --dead-letter names it.</p>'
    if found.fault:
        return f'{title}<p class="fault">Not readable: {escape(found.fault)}</p>'
    if not rows:
        return f'{title}<p class="note">None in {escape(found.table)}.</p>{_cut_note(found)}'
    more = f'<p class="note">{found.more:,} rarer errors are not shown.</p>' if found.more else ""
    names = ("Error", "Letters", "Redriven", "First seen", "Last seen", "Example")
    head = heads(*names, numbers=("Letters", "Redriven"))
    return f'{title}<table class="cards errors">{head}<tbody>{rows}</tbody></table>{more}{_cut_note(found)}'


def _cut_note(found: LettersPicture) -> str:
    if not found.is_cut:
        return ""
    return '<p class="note">The table is large: only its newest letters are counted here.</p>'


def _row(one: ErrorPicture, title: str, example: str) -> str:
    error = one.error
    cells = (
        text_cell("Error", title),
        cell("Letters", f"{error.count:,}", is_number=True),
        cell("Redriven", f"{error.redriven:,}", is_number=True),
        cell("First seen", _to_the_second(error.first_seen)),
        cell("Last seen", _to_the_second(error.last_seen)),
        cell("Example", example),
    )
    return f"<tr>{''.join(cells)}</tr>"


def _example(one: ErrorPicture) -> str:
    return printable(f"{one.error.topic}:{one.error.partition}:{one.error.offset}")


def _example_link(one: ErrorPicture) -> str:
    return f'<a id="example-{one.error_id}" href="{escape(_record_path(one.error))}">{escape(_example(one))}</a>'


def _record_path(found: Letter | LettersByError) -> str:
    return record_path(found.group_id, RecordPlace(found.topic, str(found.partition), str(found.offset)))


def _to_the_second(moment: datetime) -> str:
    return utc(microseconds(moment) // 1_000)


def _link(group_id: str, one: ErrorPicture) -> str:
    path = f"{group_path(group_id)}/letters/{one.error_id}"
    return f'<a id="error-{one.error_id}" href="{escape(path)}">{escape(_title(one))}</a>'


def _title(one: ErrorPicture) -> str:
    error = one.error
    return one_line(error.reason if error.error is None else f"{error.reason}: {error.error}", _LONGEST_TITLE)


def _of_error(one: ErrorPicture) -> str:
    left = one.error.count - len(one.letters)
    note = f'<p class="note">{left:,} older ones are not in this report.</p>' if left > 0 else ""
    return (
        f'<details id="letters-{one.error_id}"><summary>{escape(_title(one))} '
        f'<span class="note">{one.error.count:,}</span></summary>{_letters(one)}{note}</details>'
    )


def _letters(one: ErrorPicture, *, live: bool = False) -> str:
    is_open = live and len(one.letters) <= _OPEN_LETTERS
    return "".join(
        _letter(letter, _anchor(one, letter), _life_link(letter) if live else "", is_open=is_open)
        for letter in one.letters
    )


def _life_link(letter: Letter) -> str:
    return f'<p><a href="{escape(_record_path(letter))}">Its life in the group</a></p>'


def _anchor(one: ErrorPicture, letter: Letter) -> str:
    """Return the id of a letter in the page, which newer letters before it do not change."""
    _, *place = letter.identity
    return escape("-".join(map(str, ("letter", one.error_id, *place))))


def _letter(letter: Letter, anchor: str, link: str, *, is_open: bool) -> str:
    place = printable(f"{letter.topic}, partition {letter.partition}, offset {letter.offset}")
    about = f"archived {letter_time(letter.archived_at)}, delivered {times(letter.delivery_count)}"
    facts = "".join(
        f"<tr><th>{name}</th><td>{escape(_cut(text, _LONGEST_ERROR))}</td></tr>" for name, text in letter_facts(letter)
    )
    headers = "".join(_header(name, value) for name, value in letter.headers)
    table = f'<h3>Headers</h3><table class="pairs"><tbody>{headers}</tbody></table>' if headers else ""
    return (
        f'<details class="letter" id="{anchor}"{" open" * is_open}><summary id="{anchor}-fold">{escape(place)} '
        f'<span class="note">{about}</span></summary><table class="pairs"><tbody>{facts}</tbody></table>{table}'
        f"{''.join(_payloads(letter))}{link}</details>"
    )


def _header(name: str, value: bytes | None) -> str:
    found = payload_text(value, _LONGEST_HEADER)
    text = found.text + ("…" if found.is_cut else "")
    form = "" if found.form == "text" else f' <span class="note">({found.form})</span>'
    return f"<tr><th>{escape(printable(name))}</th><td>{escape(text)}{form}</td></tr>"


def _payloads(letter: Letter) -> Iterator[str]:
    parts = [("Key", letter.key), ("Value", letter.value)]
    if letter.corrected_value is not None:
        parts.append(("Corrected value", letter.corrected_value))
    for name, content in parts:
        found = payload_text(content, _MOST_SHOWN)
        size = "" if content is None else f", {found.size:,} bytes"
        cut = f", the first {_MOST_SHOWN:,} characters" if found.is_cut else ""
        yield f"<h3>{name} ({found.form}{size}{cut})</h3>{_pre(found.text) if found.text else ''}"


def _pre(text: str) -> str:
    return f"<pre>{escape(text)}</pre>"


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}…"
