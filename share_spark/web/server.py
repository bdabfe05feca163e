"""The server of the live pages: the standard library's HTTP server, which only reads. Other machines need a token."""

from __future__ import annotations

import hmac
import logging
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Protocol
from urllib.parse import parse_qs, parse_qsl, quote, unquote, urlencode

from share_spark.admin.share_group_admin import GroupsLook, ShareGroupAdmin
from share_spark.admin.state_versions import StateVersion, StateVersions
from share_spark.model.errors import ConfigError, StateError
from share_spark.model.hosts import host_in, is_loopback
from share_spark.web.document import fault_page, policy
from share_spark.web.letters_page import letters_page
from share_spark.web.page import group_page, overview_page
from share_spark.web.pictures import READ_FAULTS, Picture, fault_line, no_series, take_past_picture, take_picture
from share_spark.web.record_page import RecordPlace, no_record_page, record_form, record_page
from share_spark.web.repeated_reads import GroupTimes, LetterTables, SharedLook, chosen

_log = logging.getLogger(__name__)

COOKIE = "share_spark_token"


Response = tuple[HTTPStatus, str]
"""The status and the HTML."""

Seen = tuple[GroupsLook, StateVersion | None]
"""The groups, and the version of the state log at which they are seen, None for now."""

_MOST_TICKS = 60
"""The number of versions whose times a slider knows."""


@dataclass(slots=True)
class PageSource:
    """The pages of a location, by path. ``clock``: milliseconds since the epoch. Used by many threads, one after the
    other."""

    admin: ShareGroupAdmin
    clock: Callable[[], int]
    letters: LetterTables = field(default_factory=LetterTables)
    times: GroupTimes = field(default_factory=GroupTimes)
    versions: StateVersions = field(init=False)
    _look: SharedLook[GroupsLook] = field(init=False)
    _turn: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.versions = StateVersions(self.admin.location)
        self._look = SharedLook(self.admin.look, self.clock)

    def page(self, path: str, query: str = "") -> Response:
        """Return a page. ``path``, ``query``: as they are in the request."""
        asked = {name: texts[0].strip() for name, texts in parse_qs(query).items()}
        try:
            with self._turn:
                match [unquote(part) for part in path.split("/")]:
                    case ["", ""]:
                        return HTTPStatus.OK, overview_page(self._picture(*self._seen(asked)), self._some())
                    case ["", "groups", group_id]:
                        return self._of_group(group_id, asked, self._group)
                    case ["", "groups", group_id, "letters", error_id]:
                        return self._of_group(group_id, {}, partial(self._error, error_id=error_id))
                    case ["", "groups", group_id, "record"]:
                        return self._of_group(group_id, {}, partial(self._record, place=_record_place(asked)))
        except ConfigError as fault:
            return _missing("time", str(fault))
        except READ_FAULTS as fault:
            return HTTPStatus.SERVICE_UNAVAILABLE, fault_page("Not readable", fault_line(fault))
        return _missing("page", "There is no such page.")

    def _seen(self, asked: Mapping[str, str]) -> Seen:
        """Return the groups now, or at the version or the time that is asked for. Raises ConfigError."""
        version = self.versions.asked(asked.get("version"), asked.get("at"))
        return (self._look(), None) if version is None else (self.admin.look(version.number), version)

    def _of_group(self, group_id: str, asked: Mapping[str, str], answer: Callable[[Seen, str], Response]) -> Response:
        seen = self._seen(asked)
        try:
            seen[0].reader.require(group_id)
        except StateError as fault:
            return _missing("group", str(fault))
        return answer(seen, group_id)

    def _group(self, seen: Seen, group_id: str) -> Response:
        return HTTPStatus.OK, group_page(self._picture(*seen, group_id), self._some())

    def _picture(self, look: GroupsLook, version: StateVersion | None, *group_ids: str) -> Picture:
        if version is not None:
            series_then = partial(GroupTimes().picture, look) if group_ids else no_series
            return take_past_picture(look, self.admin.location, self.clock(), version, group_ids, series_then)
        letters, series = partial(self.letters.errors, look), partial(self.times.picture, look)
        extras = (letters, series) if group_ids else ()
        picture = take_picture(look, self.admin.location, self.clock(), group_ids, *extras)
        self.times.note_lags(picture)
        return picture

    def _some(self) -> Sequence[StateVersion]:
        return self.versions.some(_MOST_TICKS)

    def _error(self, seen: Seen, group_id: str, error_id: str) -> Response:
        look, _ = seen
        found = self.letters.errors(look, group_id)
        error = None if found is None else chosen(found.errors, error_id)
        if found is None or error is None:
            return _missing("error", f"There are no dead letters of group {group_id!r} with this error any more.")
        shown = self.letters.of_error(found.table, error)
        return HTTPStatus.OK, letters_page(self.admin.location, self.clock(), found, shown)

    def _record(self, seen: Seen, group_id: str, place: RecordPlace) -> Response:
        look, _ = seen
        topics = {topic for topic, _ in look.reader.group(group_id).partitions.values()}
        form = record_form(group_id, topics, place)
        try:
            if place.fault:
                raise ConfigError(place.fault)
            found = look.record_history(group_id, place.topic, int(place.partition), int(place.offset))
        except ConfigError as fault:
            page = no_record_page(self.admin.location, self.clock(), group_id, str(fault), form)
            return HTTPStatus.NOT_FOUND, page
        return HTTPStatus.OK, record_page(self.admin.location, self.clock(), found, form)


def _record_place(asked: Mapping[str, str]) -> RecordPlace:
    return RecordPlace(**{name: asked.get(name, "") for name in RecordPlace._fields})


def _missing(what: str, text: str) -> Response:
    return HTTPStatus.NOT_FOUND, fault_page(f"No such {what}", text)


class Pages(Protocol):
    """Pages by path, of any source."""

    def page(self, path: str, query: str = "", /) -> Response:
        """Return a page. ``path``, ``query``: as they are in the request."""
        ...


class PageServer(ThreadingHTTPServer):
    """The HTTP server. ``token`` None: only for this machine, under a name of it, so that no page of another site can
    read these by giving its own name the address of this machine."""

    daemon_threads = True

    def __init__(self, source: Pages, host: str, port: int, token: str | None) -> None:
        """Listen at once. Raises ConfigError: the port is taken, or others could read it without a token."""
        if token is None and not is_loopback(host):
            raise ConfigError(f"--host {host} can be reached by others: give a --token that they have to know")
        if token is not None and not token.strip():
            raise ConfigError("--token is empty")
        self.source, self.token = source, token
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            super().__init__((host, port), _Handler)
        except OSError as fault:
            raise ConfigError(f"--port: cannot listen on {host}:{port}: {fault.strerror or fault}") from None

    @property
    def url(self) -> str:
        """The address of the first page, without the token."""
        host, port = str(self.server_address[0]), self.server_address[1]
        return f"http://{f'[{host}]' if ':' in host else host}:{port}/"

    def handle_error(self, request: object, client_address: object) -> None:  # noqa: ARG002 - the base class's names
        """Pass over a browser that has gone away, which is no error."""
        _log.debug("a request failed", exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    server: PageServer
    server_version = "share-spark"
    sys_version = ""
    timeout = 30

    def do_GET(self) -> None:
        """Answer with a page, or why there is none."""
        path, _, query = self.path.partition("?")
        given = parse_qs(query).get("token", [""])[0]
        if not self._is_known_host():
            self._answer(HTTPStatus.FORBIDDEN, fault_page("Unknown host", "This server answers for this machine only."))
        elif given and self._is_token(given):
            to = f"/{path.lstrip('/')}{_without_token(query)}"
            self._answer(HTTPStatus.SEE_OTHER, "", {"Location": to, "Set-Cookie": _cookie(given)})
        elif not self._is_allowed():
            text = "A token is needed: open this page once with ?token=... after its address."
            self._answer(HTTPStatus.UNAUTHORIZED, fault_page("Token needed", text))
        else:
            self._answer(*self.server.source.page(path, query))

    do_HEAD = do_GET  # noqa: N815 - the base class's name

    def _is_known_host(self) -> bool:
        return self.server.token is not None or is_loopback(host_in(self.headers.get("Host", "")))

    def _is_allowed(self) -> bool:
        if self.server.token is None:
            return True
        try:
            cookie = SimpleCookie(self.headers.get("Cookie", "")).get(COOKIE)
        except CookieError:
            cookie = None
        scheme, _, bearer = self.headers.get("Authorization", "").partition(" ")
        given = bearer if scheme == "Bearer" else unquote(cookie.value) if cookie is not None else ""
        return self._is_token(given)

    def _is_token(self, given: str) -> bool:
        return self.server.token is not None and hmac.compare_digest(given.encode(), self.server.token.encode())

    def _answer(self, status: HTTPStatus, page: str, headers: dict[str, str] | None = None) -> None:
        content = page.encode()
        self.send_response(status)
        for name, value in {
            "Content-Type": "text/html; charset=utf-8",
            "Content-Length": str(len(content)),
            "Content-Security-Policy": f"{policy(live=True)}; frame-ancestors 'none'",
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cache-Control": "no-store",
            **(headers or {}),
        }.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Log nothing: a request line may have the token."""


def _without_token(query: str) -> str:
    rest = urlencode([(name, text) for name, text in parse_qsl(query) if name != "token"])
    return f"?{rest}" if rest else ""


def _cookie(token: str) -> str:
    return f"{COOKIE}={quote(token, safe='')}; HttpOnly; SameSite=Strict; Path=/"
