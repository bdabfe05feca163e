"""Pages as text: what they say, that they load nothing, and that names are only names."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from share_spark.web.document import fault_page, group_path, policy
from share_spark.web.drawings import line_svg, slice_title, span
from share_spark.web.offset_line import offset_line
from share_spark.web.page import group_page, overview_page, report_page
from share_spark.web.pictures import (
    MOST_PARTITIONS,
    BrokenGroup,
    GroupPicture,
    Picture,
    group_picture,
    take_picture,
    total_lag,
)
from tests.support.group_details import MEMBER, NOW_MS, details, run, scattered, state
from tests.support.page_elements import Elements
from tests.support.web_pages import MadeUpGroups

NASTY = '<script>alert("x")</script>\'&'
BROKEN = BrokenGroup(group_id="audit", fault="the state log of group 'audit' is damaged")


def picture(*groups: GroupPicture | BrokenGroup) -> Picture:
    return Picture(location="/lake/queues", at_ms=NOW_MS, groups=groups)


def billing() -> GroupPicture:
    runs = [run("Q", 100, 499), run("V", 500, 519, 3), run("D", 520, 899), run("X", 900, 902, 5)]
    return group_picture(details({"orders": [state(0, 100, runs), state(1, -1, []), state(2, 55, [])]}))


@pytest.mark.parametrize(
    "page",
    [
        overview_page(picture(billing(), BROKEN)),
        group_page(picture(billing())),
        report_page(picture(billing(), BROKEN)),
        report_page(picture()),
        fault_page("Not readable", "no state"),
    ],
)
def test_every_page_is_well_formed_and_loads_nothing(page: str) -> None:
    found = Elements(page)
    assert found.loads == ["data:,"]
    assert len(set(found.ids)) == len(found.ids)
    assert "url(" not in page
    assert "http" not in re.sub(r'http-equiv|xmlns="[^"]*"', "", page)


def test_a_group_says_how_far_it_is() -> None:
    text = Elements(group_page(picture(billing()))).text
    for said in (
        *("billing", "Stable", "Lag", "2,420", "Share-partitions", "12 s ago"),
        *(MEMBER, "worker-7.example, process 4711", "90 min", "400 records of 1 share-partition"),
        *("20 available, 400 acquired, 380 acknowledged, 3 archived", "not begun yet"),
        *("nothing in flight; next is offset 55", "once", "3 times"),
    ):
        assert said in text, said


def test_a_report_has_a_section_for_each_group_and_no_script() -> None:
    page = report_page(picture(billing(), BROKEN))
    assert "<script" not in page
    assert '<a id="to-billing" href="#group-0">' in page
    assert '<section id="group-1">' in page
    assert "the state log of group &#x27;audit&#x27; is damaged" in page


def test_names_are_only_names() -> None:
    runs = [run("Q", 0, 9)._replace(member_id=NASTY)]
    nasty = group_picture(details({NASTY: [state(0, 0, runs, NASTY)]}, group_id=NASTY, fault=NASTY))
    broken = BrokenGroup(group_id=f"b{NASTY}", fault=NASTY)
    for page in (
        overview_page(picture(nasty, broken)),
        group_page(picture(nasty)),
        report_page(picture(nasty, broken)),
        fault_page(NASTY, NASTY),
    ):
        assert NASTY not in page
        assert NASTY in Elements(page).text
        assert page.count("<script") == page.count("</script>") <= 1


def test_the_path_of_a_group_is_one_segment() -> None:
    assert group_path("a/b ?#ü") == "/groups/a%2Fb%20%3F%23%C3%BC"


def test_the_policy_allows_what_is_in_the_page_and_nothing_else() -> None:
    assert "script-src" not in policy(live=False)
    assert "connect-src 'self'" in policy(live=True)
    assert policy(live=True).startswith("default-src 'none'; style-src 'sha256-")
    assert policy(live=True) in group_page(picture(billing()))


def test_a_lag_that_is_not_known_is_no_number() -> None:
    found = group_picture(details({"orders": [state(0, 5, [run("Q", 5, 9)])]}, waiting=None, fault="no answer in time"))
    assert total_lag(found.offsets) is None
    text = Elements(group_page(picture(found))).text
    assert "not known" in text
    assert "The lag is not known: no answer in time" in text


def test_an_outage_is_told_with_how_long_it_lasts() -> None:
    found = details({"orders": [state(0, 5, [run("Q", 5, 9)])]})
    assert "unreachable" not in group_page(picture(group_picture(found)))
    (member,) = found.members
    out = replace(member, unreachable_since_ms=NOW_MS - 30_000)
    page = group_page(picture(group_picture(replace(found, members=[out]))))
    assert "Broker unreachable for 30 s: the engine waits, and acquires nothing." in page


def test_the_calls_of_a_handler_that_waits_are_told() -> None:
    found = details({"orders": [state(0, 5, [run("Q", 5, 9)])]})
    (member,) = found.members
    busy = replace(member, calls="8 calls running (at most 10), 12 waiting, oldest <x>-0@5 for 4 s")
    page = group_page(picture(group_picture(replace(found, members=[busy]))))
    assert "<p>8 calls running (at most 10), 12 waiting, oldest &lt;x&gt;-0@5 for 4 s.</p>" in page


def test_no_group_at_all() -> None:
    assert "There are no share groups here yet" in Elements(overview_page(picture())).text


def test_of_ten_thousand_share_partitions_those_behind_are_drawn() -> None:
    states = [state(number, 0, [run("Q", 0, number)]) for number in range(10_000)]
    found = group_picture(details({"orders": states}))
    assert [one.offsets.partition for one in found.partitions] == list(range(10_000 - MOST_PARTITIONS, 10_000))
    page = group_page(picture(found))
    assert "The 1,000 with the greatest lag; 9,000 more are not shown." in page
    assert '<details id="topic-0-0" data-topic="orders">' in page, "folded"
    assert len(page) < 3_000_000


def test_a_thousand_fragmented_windows_fit_into_a_page() -> None:
    found = group_picture(details({"orders": [scattered(number, 400) for number in range(1_000)]}))
    assert len(report_page(picture(found))) < 12_000_000


def test_hover_says_who_holds_it_and_until_when() -> None:
    line = offset_line(state(0, 100, [run("Q", 100, 499)]), 480)
    title = slice_title(line.slices[0], NOW_MS)
    assert title.splitlines() == [
        "offsets 100 to 499",
        "400 Acquired, delivered once",
        f"held by {MEMBER}",
        "until 2025-11-22 15:07:07 UTC (in 27 s)",
    ]
    assert slice_title(line.slices[0], NOW_MS + 60_000).endswith("(33 s ago)")


def test_a_slice_of_many_ranges_counts_its_offsets() -> None:
    line = offset_line(state(0, 0, [run("VD"[at % 2], at, at) for at in range(400)]), 10)
    assert slice_title(line.slices[0], NOW_MS) == "offsets 0 to 39\n20 Available\n20 Acknowledged"


def test_one_record_among_a_million_is_seen() -> None:
    runs = [run("D", 0, 499_999), run("V", 500_000, 500_000), run("D", 500_001, 999_999)]
    drawn = line_svg(offset_line(state(0, 0, runs), 480), "partition 0", NOW_MS)
    assert re.search(r'class="v" d="M2000 0h8v20h-8z"', drawn)


def test_times_are_in_the_unit_of_which_there_are_two() -> None:
    assert [span(one) for one in (0, 119_000, 120_000, 7_200_000, 172_800_000)] == [
        "0 s",
        "119 s",
        "2 min",
        "2 h",
        "2 d",
    ]


def test_a_group_that_is_chosen_twice_is_shown_once() -> None:
    groups = MadeUpGroups({name: details({}, group_id=name) for name in ("audit", "billing")})
    found = take_picture(groups, groups.location, NOW_MS, ["billing", "billing"])
    assert [one.group_id for one in found.groups] == ["billing"]
    assert [one.group_id for one in take_picture(groups, groups.location, NOW_MS).groups] == ["audit", "billing"]
