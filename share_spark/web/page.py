"""Pictures as HTML, as text. Pure; names of groups, topics and members are user input, and all text is escaped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from itertools import groupby

from share_spark.admin.group_details import GroupMember, GroupPhase, OperatorSettings, PartitionOffsets
from share_spark.admin.state_versions import StateVersion
from share_spark.engine.pauses import Pause, Pauses
from share_spark.web.charts import chart_html, charts
from share_spark.web.document import (
    ago,
    cell,
    document,
    group_path,
    heads,
    lag_text,
    place_and_time,
    time_form,
    version_query,
    way_back,
)
from share_spark.web.drawings import STATE_CLASSES, STATE_NAMES, histogram_rows, line_svg, span, utc
from share_spark.web.letters_page import errors_in_report, errors_table
from share_spark.web.pictures import (
    UNEXPECTED,
    BrokenGroup,
    GroupPicture,
    PartitionPicture,
    Picture,
    end_sentence,
    total_lag,
)
from share_spark.web.record_page import record_form

_STATE_FIELDS = ("available", "acquired", "acknowledged", "archived")
"""The fields of PartitionOffsets, in the order of ``STATE_NAMES``."""

_OPEN_PARTITIONS = 200
"""The number of share-partitions above which a topic is folded at first."""

_NOT_KNOWN_EARLIER = "At an earlier time members, lag, dead letters and what operators had set are not known."

Links = Callable[[str], str]
"""A function from a group to the path of its page."""


def overview_page(picture: Picture, some: Sequence[StateVersion] = ()) -> str:
    """Return the page of all groups, live. ``some``: earlier versions to choose from."""
    query = version_query(picture.version)
    body = _overview(picture, lambda group_id: group_path(group_id) + query)
    return _live("Share groups", picture, body + time_form("/", picture.version, some))


def group_page(picture: Picture, some: Sequence[StateVersion] = ()) -> str:
    """Return the page of the only group of the picture, live."""
    (group,) = picture.groups
    is_past = picture.version is not None
    body = way_back(query=version_query(picture.version))
    body += _section(group, picture.at_ms, 0, _no_errors if is_past else errors_table) + _record_form(group)
    body += time_form(group_path(group.group_id), picture.version, some)
    return _live(f"Share group {group.group_id}", picture, body)


def _live(title: str, picture: Picture, body: str) -> str:
    head = place_and_time(picture.location, picture.at_ms, picture.version)
    return document(title, head, body, live=True, changes=picture.version is None)


def report_page(picture: Picture) -> str:
    """Return a page of all groups of the picture for a file, with nothing to load and nothing that runs."""
    numbers = {group.group_id: at for at, group in enumerate(picture.groups)}
    overview = _overview(picture, lambda group_id: f"#group-{numbers[group_id]}")
    errors = errors_in_report if picture.version is None else _no_errors
    sections = "".join(_section(group, picture.at_ms, at, errors) for at, group in enumerate(picture.groups))
    head = place_and_time(picture.location, picture.at_ms, picture.version)
    return document("Share groups", head, overview + sections, live=False)


def _record_form(group: GroupPicture | BrokenGroup) -> str:
    if isinstance(group, BrokenGroup) or not group.offsets:
        return ""
    hint = '<p class="note">A click into the line of a window asks for the record at that place.</p>'
    return record_form(group.group_id, {row.topic for row in group.offsets}, hint=hint)


def _overview(picture: Picture, links: Links) -> str:
    if not picture.groups:
        return (
            '<p class="card">There are no share groups here yet. The first micro-batch of a group makes its state.</p>'
        )
    rows = "".join(_overview_row(group, picture.at_ms, links) for group in picture.groups)
    names = ("Group", "State", "Lag", "Acquired", "Waiting again", "Last micro-batch")
    head = heads(*names, numbers=("Lag", "Acquired", "Waiting again"))
    return f'<div class="card"><table class="cards">{head}<tbody>{rows}</tbody></table></div>'


def _overview_row(group: GroupPicture | BrokenGroup, now_ms: int, links: Links) -> str:
    link = f'<a id="to-{escape(group.group_id)}" href="{escape(links(group.group_id))}">{escape(group.group_id)}</a>'
    if isinstance(group, BrokenGroup):
        return f"<tr>{cell('Group', link)}{cell('State', _phase(group))}<td colspan='4'>{escape(group.fault)}</td></tr>"
    cells = (
        cell("Group", link),
        cell("State", _phase(group)),
        cell("Lag", lag_text(total_lag(group.offsets)), is_number=True),
        cell("Acquired", f"{sum(row.acquired for row in group.offsets):,}", is_number=True),
        cell("Waiting again", f"{sum(row.available for row in group.offsets):,}", is_number=True),
        cell("Last micro-batch", ago(group.decided_at_ms, now_ms)),
    )
    return f"<tr>{''.join(cells)}</tr>"


def _phase(group: GroupPicture | BrokenGroup) -> str:
    if isinstance(group, BrokenGroup):
        return '<span class="phase broken">Not readable</span>'
    if group.phase is None:
        return ""
    kind = " stable" if group.phase is GroupPhase.STABLE else ""
    marks = _unexpected_end(group) + _paused(group.operator_settings.pauses)
    return f'<span class="phase{kind}">{group.phase.value}</span>{marks}'


def _unexpected_end(group: GroupPicture) -> str:
    end = group.engine.end if group.engine is not None else None
    if end is None or end.kind not in UNEXPECTED:
        return ""
    return f' <span class="phase broken">{UNEXPECTED[end.kind]}</span>'


def _paused(pauses: Pauses) -> str:
    if not pauses:
        return ""
    is_whole = any(one.topic is None for one in pauses.entries)
    return f' <span class="phase">{"Paused" if is_whole else "Paused in part"}</span>'


Errors = Callable[[GroupPicture], str]
"""A function from a group to the HTML of its dead letters."""


def _no_errors(_group: GroupPicture) -> str:
    """Return no dead letters: at an earlier time they are not looked up."""
    return ""


def _section(group: GroupPicture | BrokenGroup, now_ms: int, number: int, errors: Errors) -> str:
    title = f'<div class="title"><h2>{escape(group.group_id)}</h2>{_phase(group)}</div>'
    if isinstance(group, BrokenGroup):
        parts = [title, f'<p class="fault" role="alert">{escape(group.fault)}</p>']
    else:
        parts = [
            title,
            _facts(group, now_ms),
            _outage(group, now_ms),
            _calls(group),
            _ends_fault(group),
            _set_by_operators(group.operator_settings),
        ]
        parts += [
            _members(group, now_ms),
            _deliveries(group),
            _over_time(group),
            errors(group),
            _topics(group, now_ms, number),
        ]
    return f'<section id="group-{number}">{"".join(parts)}</section>'


def _facts(group: GroupPicture, now_ms: int) -> str:
    states = (
        (f'<span class="key {key}"></span>{name}', f"{sum(getattr(row, field) for row in group.offsets):,}", "")
        for key, name, field in zip(STATE_CLASSES, STATE_NAMES, _STATE_FIELDS, strict=True)
    )
    facts = (
        ("Lag", lag_text(total_lag(group.offsets)), ""),
        *states,
        ("Share-partitions", f"{len(group.offsets):,}", ""),
        ("Last micro-batch", f"{ago(group.decided_at_ms, now_ms)}", "text"),
    )
    found = "".join(f'<div><dt>{name}</dt><dd class="{kind}">{value}</dd></div>' for name, value, kind in facts)
    return f'<dl class="facts">{found}</dl>'


def _outage(group: GroupPicture, now_ms: int) -> str:
    since_ms = [one.unreachable_since_ms for one in group.members if one.unreachable_since_ms is not None]
    if not since_ms:
        return ""
    lasts = span(max(0, now_ms - min(since_ms)))
    return f'<p class="fault" role="alert">Broker unreachable for {lasts}: the engine waits, and acquires nothing.</p>'


def _calls(group: GroupPicture) -> str:
    texts = [escape(one.calls) for one in group.members if one.calls]
    return f"<p>{texts[0]}.</p>" if texts else ""


def _ends_fault(group: GroupPicture) -> str:
    if not group.ends_fault:
        return ""
    return f'<p class="fault">The lag is not known: {escape(group.ends_fault)}</p>'


def _set_by_operators(settings: OperatorSettings) -> str:
    if settings.fault:
        return f'<p class="fault" role="alert">What operators have set is not known: {escape(settings.fault)}</p>'
    rows = [("paused", _pause_text(pause)) for pause in settings.pauses.entries]
    rows += settings.dynamic_configs.items()
    if not rows:
        return ""
    cells = (f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in rows)
    return f'<h3>Set by operators</h3><table class="pairs settings"><tbody>{"".join(cells)}</tbody></table>'


def _pause_text(pause: Pause) -> str:
    return pause.place if pause.until_ms is None else f"{pause.place}, until {utc(pause.until_ms)}"


def _members(group: GroupPicture, now_ms: int) -> str:
    if group.phase is None:
        return f"<p class='note'>{_NOT_KNOWN_EARLIER}</p>"
    members = group.members
    if not members:
        return f"<h3>Members</h3><p class='note'>None: no engine runs this group.</p>{_last_engine(group, now_ms)}"
    names = ("Member", "Host", "Epoch", "Runs since", "Heartbeat", "Holds")
    rows = "".join(f"<tr>{_member(one, now_ms)}</tr>" for one in members)
    return f'<h3>Members</h3><table class="cards">{heads(*names)}<tbody>{rows}</tbody></table>'


def _last_engine(group: GroupPicture, now_ms: int) -> str:
    end = group.engine.end if group.engine is not None else None
    if group.engine is None or end is None:
        return ""
    kind = '"fault" role="alert"' if end.kind in UNEXPECTED else '"note"'
    return f"<p class={kind}>{escape(end_sentence(group.engine, end, now_ms))}</p>"


def _member(member: GroupMember, now_ms: int) -> str:
    held = sum(member.acquired.values())
    return "".join(
        (
            cell("Member", escape(member.member_id)),
            cell("Host", f"{escape(member.host)}, process {member.pid}"),
            cell("Epoch", str(member.writer_epoch)),
            cell("Runs since", f"{utc(member.since_ms)} ({span(max(0, now_ms - member.since_ms))})"),
            cell("Heartbeat", f"{span(member.silent_ms)} ago"),
            cell("Holds", f"{held:,} records of {_share_partitions(len(member.acquired))}" if held else "nothing"),
        )
    )


def _share_partitions(number: int) -> str:
    return f"{number:,} share-partition{'s' * (number != 1)}"


def _over_time(group: GroupPicture) -> str:
    drawn = "".join(map(chart_html, charts(group.series)))
    fault = f'<p class="note">{escape(group.series.fault)}</p>' if group.series.fault else ""
    if not drawn and not fault:
        return ""
    return f'<h3>Over time, as far as the log goes back</h3>{fault}<div class="charts">{drawn}</div>'


def _deliveries(group: GroupPicture) -> str:
    if not group.delivery_counts:
        return ""
    rows = "".join(
        f'<tr><td>{label}</td><td class="number">{records}</td><td>{bar}</td></tr>'
        for label, records, bar in histogram_rows(group.delivery_counts)
    )
    title = "Unfinished records of the windows, by how often they were delivered"
    return f'<h3>{title} (bars on a logarithmic scale)</h3><table class="deliveries">{rows}</table>'


def _topics(group: GroupPicture, now_ms: int, number: int) -> str:
    if not group.partitions:
        return '<p class="note">No share-partition has a state yet.</p>'
    left = len(group.offsets) - len(group.partitions)
    note = f'<p class="note">The {len(group.partitions):,} with the greatest lag; {left:,} more are not shown.</p>'
    parts = ["<h3>Windows of the share-partitions, from SPSO to SPEO</h3>", note if left else ""]
    topics = groupby(group.partitions, lambda one: one.offsets.topic)
    parts += (_topic(topic, list(some), now_ms, f"topic-{number}-{at}") for at, (topic, some) in enumerate(topics))
    return "".join(parts)


def _topic(topic: str, partitions: Sequence[PartitionPicture], now_ms: int, anchor: str) -> str:
    lag = lag_text(total_lag(one.offsets for one in partitions))
    many = f"{_share_partitions(len(partitions))}, lag {lag}"
    items = "".join(_partition(one, now_ms) for one in partitions)
    return (
        f'<details id="{anchor}" data-topic="{escape(topic)}"{" open" * (len(partitions) <= _OPEN_PARTITIONS)}>'
        f'<summary id="{anchor}-fold">{escape(topic)} <span class="note">{many}</span></summary>'
        f'<ol class="partitions">{items}</ol></details>'
    )


def _partition(one: PartitionPicture, now_ms: int) -> str:
    row = one.offsets
    name = f"<span>partition {row.partition}</span>"
    lag = f'<span class="lag">{f"lag {lag_text(row.lag)}" if row.start_offset >= 0 else ""}</span>'
    if not one.line.slices:
        place = "not begun yet" if row.start_offset < 0 else f"nothing in flight; next is offset {row.start_offset}"
        return f'<li>{name}<span class="idle">{place}</span>{lag}</li>'
    drawn = line_svg(one.line, f"partition {row.partition}: {_counts(row)}", now_ms)
    ends = (
        f'<span class="ends"><span>{one.line.start_offset}</span><span>{_counts(row)}</span>'
        f"<span>{one.line.end_offset}</span></span>"
    )
    return f'<li data-partition="{row.partition}">{name}{drawn}{lag}{ends}</li>'


def _counts(row: PartitionOffsets) -> str:
    named = zip(STATE_NAMES, _STATE_FIELDS, strict=True)
    return ", ".join(f"{getattr(row, field):,} {name.lower()}" for name, field in named if getattr(row, field))
