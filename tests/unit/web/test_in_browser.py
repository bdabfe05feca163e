"""The pages in a real Chromium: what a person sees and does with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from share_spark.admin.group_details import OperatorSettings
from share_spark.admin.share_group_admin import ShareGroupAdmin
from share_spark.admin.state_reader import Engine
from share_spark.engine.pauses import NOT_PAUSED
from share_spark.kafka.share_groups import Cluster, ClusterGroup, ClusterMember, ClusterPartition
from share_spark.maintenance.heartbeat import Beat, EndKind, EngineEnd
from share_spark.model.errors import StateError
from share_spark.web import document, page
from share_spark.web.cluster_page import cluster_report
from share_spark.web.pictures import BrokenGroup, GroupPicture, Picture, group_picture
from tests.support.browser import Tab, find_browser, opened_browser
from tests.support.group_details import NOW_MS, details, run, scattered, state
from tests.support.letter_tables import add_letters, make_letters, row
from tests.support.state_logs import StateLog, snapshot, update
from tests.support.web_pages import MadeUpGroups, served

pytestmark = pytest.mark.skipif(
    find_browser() is None,
    reason="no Chromium on this machine: `make browser` installs Debian's, CHROMIUM=... names another",
)

LONG = "a-long-name-without-a-place-to-break-it" * 4


@pytest.fixture(scope="module")
def tabs() -> Iterator[Callable[[], Tab]]:
    with opened_browser() as found:
        yield found


def orders(size: int, **given: object) -> GroupPicture:
    windows = [scattered(number, 10) for number in range(size)]
    return group_picture(details({"orders": windows}, **given))


SETTINGS = OperatorSettings(
    pauses=NOT_PAUSED.paused({LONG: [0]}, NOW_MS),
    dynamic_configs={"share.record.redelivery.backoff.policy": "exponential", "delivery.rate.limit": "50.0"},
)

FAILED = Engine(
    beat=Beat("spark-1", 3, host=LONG).ended_by(EngineEnd(EndKind.FAILED, NOW_MS, f"SinkError: {LONG * 3}")),
    written_ms=NOW_MS,
    silent_ms=0,
)

REPORTS: dict[str, tuple[GroupPicture | BrokenGroup, ...]] = {
    "one": (group_picture(details({"orders": [state(0, 100, [run("Q", 100, 499), run("D", 500, 899)])]})),),
    "thousand": (orders(1_000),),
    "hundred thousand ranges": (group_picture(details({LONG: [scattered(0, 100_000)]}, group_id=f"<b>{LONG}</b>")),),
    "none": (),
    "set by operators": (
        group_picture(replace(details({"orders": [state(0, 0, [run("Q", 0, 9)])]}), operator_settings=SETTINGS)),
    ),
    "engine failed": (
        group_picture(replace(details({"orders": [state(0, 0, [run("Q", 0, 9)])]}, members=False), engine=FAILED)),
    ),
    "broken": (
        BrokenGroup(group_id=LONG, fault=f"the state of {LONG} is damaged"),
        orders(2, waiting=None, fault=LONG),
    ),
}


def cluster(size: int) -> Cluster:
    """``size``: share-partitions."""
    names = {"group_id": f"<b>{LONG}</b>", "state": "Stable", "assignor": "simple"}
    consumer = {"member_id": LONG, "client_id": LONG, "host": LONG, "epoch": 1, "subscribed": [LONG]}
    members = [ClusterMember(**consumer, assigned=assigned) for assigned in ({LONG: [0, 1]}, {LONG: [0]}, {})]
    places = [ClusterPartition(topic=LONG, partition=at, start_offset=10**12, lag=10**9) for at in range(size)]
    broken = ClusterGroup(group_id="audit", state="", fault=LONG)
    return Cluster(
        servers=LONG, groups=[ClusterGroup(**names, members=members, partitions=places), broken], locks=2_000
    )


PAGES: dict[str, Callable[[], str]] = {
    **{
        name: partial(page.report_page, Picture(location="/lake/queues", at_ms=NOW_MS, groups=groups))
        for name, groups in REPORTS.items()
    },
    "cluster": lambda: cluster_report(cluster(1_000), NOW_MS),
    "empty cluster": lambda: cluster_report(Cluster(servers="b:1", groups=[], locks=None), NOW_MS),
}


@pytest.mark.parametrize("name", PAGES)
def test_a_report_fits_the_screen_and_asks_for_nothing(tabs: Callable[[], Tab], tmp_path: Path, name: str) -> None:
    file = tmp_path / "report.html"
    file.write_text(PAGES[name]())
    tab = tabs()
    tab.open(file.as_uri())
    tab.value("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    grounds = set()
    for width in (1280, 390):
        for dark in (False, True):
            tab.window(width, dark=dark)
            assert tab.value("document.documentElement.scrollWidth") <= width
            grounds.add(tab.value("getComputedStyle(document.body).backgroundColor"))
    assert len(grounds) == 2, "light and dark"
    assert {url for url in tab.requests if not url.startswith("data:")} == {file.as_uri()}
    assert tab.complaints == []
    assert tab.value("document.querySelector('b')") is None, "a name is no markup"


_TITLE = """(() => {
    const box = document.querySelector('svg.line').getBoundingClientRect();
    const hit = document.elementFromPoint(box.left + box.width * %s, box.top + box.height / 2);
    return hit.parentNode.querySelector('title').textContent;
})()"""


def test_every_slice_says_on_hover_what_it_is(tabs: Callable[[], Tab], tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text(page.report_page(Picture(location="/lake/queues", at_ms=NOW_MS, groups=REPORTS["one"])))
    tab = tabs()
    tab.window(1280)
    tab.open(file.as_uri())
    titles = [tab.value(_TITLE % part) for part in (0.25, 0.75)]
    assert [title.splitlines()[1] for title in titles] == [
        "400 Acquired, delivered once",
        "400 Acknowledged, delivered once",
    ]


@pytest.fixture
def live(monkeypatch: pytest.MonkeyPatch) -> MadeUpGroups:
    monkeypatch.setattr(document, "REFRESH_MS", 50)
    return MadeUpGroups({"billing": details({"orders": [state(0, 0, [run("Q", 0, 9)])]})})


def test_a_live_page_follows_without_being_loaded_again(tabs: Callable[[], Tab], live: MadeUpGroups) -> None:
    tab = tabs()
    with served(live) as server:
        tab.open(server.url)
        tab.press("Tab")
        assert tab.value("document.activeElement.id") == "pause"
        tab.press("Tab")
        assert tab.value("document.activeElement.id") == "to-billing"
        tab.press("Enter")
        tab.wait_for("location.pathname === '/groups/billing' && document.querySelector('svg.line')")
        tab.value("window.mark = 'the same document'; document.getElementById('topic-0-0-fold').focus()")
        tab.press("Enter")
        assert tab.value("document.getElementById('topic-0-0').open") is False
        live.groups["billing"] = details({"orders": [state(0, 0, [run("D", 0, 4), run("V", 5, 9, 2)])]})
        tab.wait_for("document.querySelector('table.deliveries').textContent.includes('twice')")
        assert tab.value("window.mark") == "the same document"
        assert tab.value("document.getElementById('topic-0-0').open") is False, "what was folded stays so"
        assert tab.value("document.activeElement.id") == "topic-0-0-fold", "and the focus stays"
    assert tab.complaints == []


def test_a_live_page_shows_faults_and_recovers_and_pauses(tabs: Callable[[], Tab], live: MadeUpGroups) -> None:
    tab = tabs()
    with served(live) as server:
        tab.open(server.url)
        live.fault = StateError("no share-group state any more")
        tab.wait_for("document.querySelector('.fault')?.textContent.includes('no share-group state any more')")
        live.fault = None
        tab.wait_for("document.getElementById('to-billing')")
        tab.value("document.getElementById('pause').click()")
        assert tab.value("document.getElementById('pause').textContent") == "Resume"
        shown = tab.value("document.querySelector('main').textContent")
        assert tab.value("new Promise((found) => setTimeout(found, 300))") is None
        assert tab.value("document.querySelector('main').textContent") == shown, "each answer has another time"
        tab.value("document.getElementById('pause').click()")
        tab.wait_for("!document.body.classList.contains('stale')")
    tab.wait_for("document.body.classList.contains('stale')")


def test_from_a_group_to_the_letters_of_an_error(tabs: Callable[[], Tab], live: MadeUpGroups, tmp_path: Path) -> None:
    live.letters = make_letters(tmp_path / "dead", [row(0, value=b"<b>" + b"x" * 9_000), row(1, error=LONG)])
    tab = tabs()
    with served(live) as server:
        tab.window(390)
        tab.open(f"{server.url}groups/billing")
        tab.value("document.querySelector('table.errors a').focus()")
        tab.press("Enter")
        tab.wait_for("location.pathname.includes('/letters/') && document.querySelector('details.letter pre')")
        assert tab.value("document.documentElement.scrollWidth") <= 390
        fold = "document.querySelector('details.letter summary')"
        tab.value(f"{fold}.focus()")
        tab.press("Enter")
        add_letters(tmp_path / "dead", [row(2, error=tab.value("document.querySelector('.title + pre').textContent"))])
        tab.wait_for("document.querySelectorAll('details.letter').length === 2")
        assert tab.value("document.querySelectorAll('details.letter')[1].open") is False, "what was folded stays so"
        assert tab.value("document.activeElement.textContent.startsWith('orders, partition 0, offset 0')")
        assert tab.value("document.querySelector('b')") is None, "a value is no markup"
        assert tab.complaints == []


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> StateLog:
    monkeypatch.setattr(document, "REFRESH_MS", 50)
    log = StateLog(tmp_path / "state")
    log.claim()
    log.records(snapshot(100, run("Q", 100, 199)))
    return log


def test_a_record_is_asked_for_by_a_click_into_a_line_or_by_its_offset(
    tabs: Callable[[], Tab], stored: StateLog
) -> None:
    tab = tabs()
    with served(ShareGroupAdmin(stored.location), clock=count(NOW_MS, 1_000).__next__) as server:
        tab.window(390)
        tab.open(f"{server.url}groups/billing")
        tab.value("document.getElementById('record-offset').value = '7'")
        stored.records(update(-1, run("D", 150, 159)))
        tab.wait_for("document.querySelector('svg.line').getAttribute('aria-label').includes('10 acknowledged')")
        assert tab.value("document.getElementById('record-offset').value") == "7", "what was typed stays"
        tab.value(_CLICK % 0.5)
        tab.wait_for("location.search === '?topic=orders&partition=0&offset=150' && document.querySelector('.events')")
        assert tab.value("document.documentElement.scrollWidth") <= 390
        assert "acquired" in tab.value("document.querySelector('table.events').textContent")
        tab.value("document.getElementById('record-offset').focus()")
        tab.value("document.getElementById('record-offset').value = '300'")
        tab.press("Enter")
        tab.wait_for("document.querySelector('main')?.textContent.includes('it was not acquired yet')")
        assert tab.complaints == []


_CLICK = """(() => {
    const line = document.querySelector('svg.line'), box = line.getBoundingClientRect();
    const at = { bubbles: true, clientX: box.left + box.width * %s, clientY: box.top + 2 };
    line.dispatchEvent(new MouseEvent('click', at));
})()"""


def test_back_to_an_earlier_version_by_the_keyboard(tabs: Callable[[], Tab], stored: StateLog) -> None:
    stored.records(update(-1, run("D", 150, 159)))
    tab = tabs()
    with served(ShareGroupAdmin(stored.location), clock=count(NOW_MS, 1_000).__next__) as server:
        tab.window(390, dark=True)
        tab.open(f"{server.url}groups/billing")
        tab.value("document.getElementById('version').focus()")
        tab.press("ArrowLeft")
        shown = "document.getElementById('version-shown').textContent"
        assert tab.value(shown) == "version 2, 2025-11-22 14:00:01 UTC"
        tab.press("Tab")
        assert tab.value("document.activeElement.id") == "show-version"
        tab.press("Enter")
        tab.wait_for("location.search === '?version=2' && document.querySelector('svg.line')")
        assert "100 acquired" in tab.value("document.querySelector('svg.line').getAttribute('aria-label')")
        assert tab.value("document.getElementById('pause')") is None
        assert tab.value("document.documentElement.scrollWidth") <= 390
        tab.value("document.getElementById('now').click()")
        tab.wait_for("document.querySelector('svg.line')?.getAttribute('aria-label').includes('10 acknowledged')")
        assert tab.complaints == []
