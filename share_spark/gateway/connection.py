"""One connection of a client: its requests are answered one after the other, in their order.

As in a Kafka broker the next request is not begun before the last is answered; what a client sends meanwhile waits, in
its socket from 64 KiB on. So a connection takes bounded memory, and has one request at a time in the handler.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Protocol

from kio.static.protocol import RequestPayload

from share_spark.gateway.access import Rules
from share_spark.gateway.apis import API_VERSIONS, BEFORE_LOGIN, OF_LOGIN, api_versions_answer
from share_spark.gateway.frames import Answer, FrameSplitter, RequestHead, answer_frame, read_head, read_request
from share_spark.gateway.handler import Handler, RequestContext
from share_spark.gateway.login import Login
from share_spark.gateway.message_reader import MalformedRequestError

_log = logging.getLogger(__name__)

_MOST_READ_AHEAD = 1 << 16

_LINGER_S = 1.0

_LONG_FRAME_BYTES = 1 << 16
"""Frames from this length on are read in a thread. A megabyte of the smallest elements takes half a second, in which
others are answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """The limits of one connection.

    ``frame_bytes``: of one request; ``login_frame_bytes``: before the client has logged in. ``login_s``: the time for
    the TLS handshake, and again for the login. ``idle_s``: the time without a whole request, or in which the client
    does not take what was sent, after which it is disconnected (Kafka: ``connections.max.idle.ms``).
    """

    frame_bytes: int = 1 << 20
    login_frame_bytes: int = 1 << 14
    login_s: float = 10.0
    idle_s: float = 600.0


class Owner(Protocol):
    """The owner of connections, who is told of their lives."""

    def began(self, connection: Connection) -> None:
        """Take note of a connection."""
        ...

    def logged_in(self, connection: Connection) -> None:
        """Take note that the client of a connection is known."""
        ...

    def ended(self, connection: Connection) -> None:
        """Take note that nothing of a connection runs any more."""
        ...


class Connection(asyncio.Protocol):
    """A connection, driven by the event loop."""

    def __init__(
        self, connection_id: int, handler: Handler, limits: ConnectionLimits, owner: Owner, login: Login
    ) -> None:
        """Begin without a transport: the event loop brings it."""
        self.id = connection_id
        self._handler = handler
        self._limits = limits
        self._owner, self._login = owner, login
        self._is_known = self._is_last_answer = False
        self._frames = FrameSplitter(limits.login_frame_bytes)
        self._answering: asyncio.Task[None] | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._loop = asyncio.get_running_loop()
        self._last_progress = self._loop.time()

    # ------------------------------------------------------------------------------ called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to receive."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        peer = transport.get_extra_info("peername")
        self._client_host = str(peer[0]) if peer else ""
        self._idle_timer = self._loop.call_later(self._limits.idle_s, self._close_if_idle)
        self._login_timer = self._loop.call_later(self._limits.login_s, self._close_stranger)
        self._owner.began(self)
        self._note_login()

    def data_received(self, data: bytes) -> None:
        """Take bytes, and begin to answer unless a request is being answered."""
        self._frames.add(data)
        if self._is_answering:
            if self._frames.waiting_bytes > _MOST_READ_AHEAD:
                self._transport.pause_reading()
        else:
            self._answering = self._loop.create_task(self._answer_frames())

    def pause_writing(self) -> None:
        """Answer no more until the client has taken what was sent."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Go on answering."""
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's
        """Cancel the present request; then the connection has ended."""
        self._idle_timer.cancel()
        self._login_timer.cancel()
        if self._answering is None or self._answering.done():
            self._end()
        else:
            self._answering.add_done_callback(lambda _: self._end())
            self._answering.cancel()

    def _end(self) -> None:
        self._login.close()
        self._owner.ended(self)

    # -------------------------------------------------------------------------------------------- closing

    def close(self, reason: object) -> None:
        """Close at once; what was not sent yet is lost."""
        if not self._transport.is_closing():
            _log.debug("connection %d of %s is closed: %s", self.id, self._client_host, reason)
            self._transport.abort()

    def _close_after_sending(self) -> None:
        """Close once all is sent, within a time that such a client does not choose."""
        self._transport.close()
        self._loop.call_later(_LINGER_S, self._transport.abort)

    def _close_stranger(self) -> None:
        self.close(f"no login in {self._limits.login_s:g} s")

    def _close_if_idle(self) -> None:
        left_s = self._last_progress + self._limits.idle_s - self._loop.time()
        if self._is_answering and self._writable.is_set():
            left_s = self._limits.idle_s
        if left_s <= 0:
            self.close(f"no request in {self._limits.idle_s:g} s")
        else:
            self._idle_timer = self._loop.call_later(left_s, self._close_if_idle)

    # ------------------------------------------------------------------------------------------ answering

    @property
    def _is_answering(self) -> bool:
        return self._answering is not None and not self._answering.done()

    async def _answer_frames(self) -> None:
        """Answer all requests that are here."""
        try:
            while (frame := self._frames.next()) is not None:
                if not await self._answer_frame(frame):
                    return
                if self._frames.waiting_bytes:
                    # A client that sends on and on must not keep the loop from others.
                    await asyncio.sleep(0)
            self._transport.resume_reading()
        except MalformedRequestError as error:
            self.close(error)
        except Exception:  # noqa: BLE001 - a fault of the handler must not end the server
            _log.exception("connection %d of %s is closed: its request failed", self.id, self._client_host)
            self._transport.abort()

    async def _answer_frame(self, frame: bytes) -> bool:
        """Answer one request; False: the connection is closed."""
        self._last_progress = self._loop.time()
        head = read_head(frame)
        answer = await self._answer(frame, head)
        if answer is None:
            self.close("the request has no answer")
        if answer is None or self._transport.is_closing():
            return False
        self._transport.writelines(answer_frame(head.correlation_id, answer))
        if self._is_last_answer:
            self._close_after_sending()
            return False
        await self._writable.wait()
        self._last_progress = self._loop.time()
        return True

    async def _answer(self, frame: bytes, head: RequestHead) -> Answer | None:
        # A version of ApiVersions that is not known cannot be read, but is answered.
        if head.api_key == API_VERSIONS.key and head.api_version not in API_VERSIONS.versions:
            return api_versions_answer(head.api_version)
        rights = self._login.rights
        if rights is None and head.api_key not in BEFORE_LOGIN:
            raise MalformedRequestError(f"a request of API {head.api_key} before the login")
        if len(frame) < _LONG_FRAME_BYTES:
            client_id, message = read_request(frame, head)
        else:
            client_id, message = await asyncio.to_thread(read_request, frame, head)
        if head.api_key == API_VERSIONS.key:
            return api_versions_answer(head.api_version)
        origin = self.id, client_id, self._client_host
        via = self._login.via
        context = RequestContext(*origin, head.api_key, head.api_version, rights or Rules(), via, frame)
        if head.api_key in OF_LOGIN:
            return await self._log_in(context, message)
        return await self._handler.answer(context, message)

    # ---------------------------------------------------------------------------------------------- login

    async def _log_in(self, context: RequestContext, message: RequestPayload) -> Answer | None:
        said = await self._login.answer(context, message)
        if said is None:
            return None
        self._is_last_answer = said.is_last
        self._note_login()
        return said.answer

    def _note_login(self) -> None:
        """Lift the limits for strangers as soon as the client is known."""
        if self._login.rights is not None and not self._is_known:
            self._is_known = True
            self._login_timer.cancel()
            self._frames.most_bytes = self._limits.frame_bytes
            self._owner.logged_in(self)
