"""Requests of clients for groups that another gateway owns: passed on to it as they are, and its answers handed back.

Each connection of a client has one of its own to each owner, so that requests stay in order, and what ends with the
client's connection ends there, too. The owner is told what the client may do, anew whenever that has changed. If it
goes, the request is sent again to whoever owns the group then. That may be this gateway.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from ssl import SSLContext, SSLObject
from typing import TypeVar

from kio.schema.sasl_authenticate.v2 import SaslAuthenticateRequest, SaslAuthenticateResponse
from kio.schema.sasl_handshake.v1 import SaslHandshakeRequest, SaslHandshakeResponse
from kio.static.protocol import RequestPayload, ResponsePayload

from share_spark.gateway.access import Rules
from share_spark.gateway.frames import PassedAnswer
from share_spark.gateway.handler import RequestContext
from share_spark.gateway.node_login import MECHANISM, credentials
from share_spark.gateway.nodes import Node, Nodes, owner_of
from share_spark.gateway.topic_catalog import TopicCatalog
from share_spark.kafka.broker_connection import decoded_answer, encoded_request

_log = logging.getLogger(__name__)

_PATIENCE_S = 15.0
"""The time for which a request waits for an owner that answers, as it does for an engine."""

_RETRY_S, _CONNECT_S, _LOOK_S = 0.2, 3.0, 0.5

_MOST_BYTES = 256 << 20
"""The longest answer of another gateway."""

_Answer = TypeVar("_Answer", bound=ResponsePayload)


@dataclass(slots=True)
class _Link:
    """A connection to another gateway, for the requests of one connection of a client. ``rules``: of its user, as the
    other one was told."""

    node: Node
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    rules: Rules | None = None

    async def ask(self, frame: bytes, is_wanted: Callable[[], bool]) -> bytes:
        """Send a frame, and return that of the answer. Raises OSError, EOFError, also if it is no longer wanted."""
        self.writer.write(len(frame).to_bytes(4) + frame)
        await self.writer.drain()
        answer = asyncio.ensure_future(self._received())
        try:
            while not answer.done():
                await asyncio.wait({answer}, timeout=_LOOK_S)
                if not answer.done() and not is_wanted():
                    raise ConnectionError(f"node {self.node.node_id} has gone")
            return answer.result()
        finally:
            answer.cancel()

    async def log_in(self, node_id: int, rules: Rules) -> None:
        """Say who passes on requests, and of whom, unless that was said. Raises OSError, EOFError, ValueError."""
        if rules == self.rules:
            return
        begun = await self._asked(SaslHandshakeRequest(mechanism=MECHANISM), SaslHandshakeResponse)
        if begun.error_code:
            raise ConnectionError(f"node {self.node.node_id} does not take requests of other gateways")
        shown = SaslAuthenticateRequest(auth_bytes=credentials(self.node.secret, node_id, rules))
        answer = await self._asked(shown, SaslAuthenticateResponse)
        if answer.error_code:
            raise ConnectionError(f"node {self.node.node_id}: {answer.error_message}")
        self.rules = rules

    async def _asked(self, request: RequestPayload, answer: type[_Answer]) -> _Answer:
        return decoded_answer(await self.ask(encoded_request(request), lambda: True), answer)

    async def _received(self) -> bytes:
        length = int.from_bytes(await self.reader.readexactly(4))
        if length > _MOST_BYTES:
            raise ConnectionError(f"node {self.node.node_id} answers with {length} bytes")
        return await self.reader.readexactly(length)


@dataclass(slots=True)
class PassingOn:
    """The links to other gateways, for the thread of the event loop. ``tls``: with which gateways connect."""

    nodes: Nodes
    catalog: TopicCatalog
    tls: SSLContext | None
    _links: dict[int, dict[int, _Link]] = field(default_factory=dict)
    _topics: dict[int, dict[str, str]] = field(default_factory=dict)
    """The topics that each connection has named, which the owner keeps for its session: names by ids."""

    async def answer(self, context: RequestContext, group_id: str, topic_ids: Collection[str]) -> PassedAnswer | None:
        """Return the answer of the owner; None: this node owns the group by now, or nobody has answered. The client may
        ask about this group; the request names these topics. Raises TopicUnreachableError."""
        rules = await context.grant.passed_on(await self._named(context.connection_id, topic_ids))
        loop = asyncio.get_running_loop()
        until = loop.time() + _PATIENCE_S
        while loop.time() < until:
            owner = owner_of(group_id, self.nodes.live)
            if owner.node_id == self.nodes.me.node_id:
                return None
            try:
                link = await asyncio.wait_for(self._link(context, owner, rules), _CONNECT_S)
                return PassedAnswer(await link.ask(context.frame, partial(self._is_live, owner)))
            except (OSError, EOFError, ValueError) as fault:
                _log.debug("node %d does not answer: %s", owner.node_id, fault)
                self._close(self._links.get(context.connection_id, {}).pop(owner.node_id, None))
                await asyncio.sleep(_RETRY_S)
        return None

    def _is_live(self, node: Node) -> bool:
        return node in self.nodes.live

    def closed(self, connection_id: int) -> None:
        """Close the links of a client's connection that is closed."""
        self._topics.pop(connection_id, None)
        for link in self._links.pop(connection_id, {}).values():
            self._close(link)

    async def _named(self, connection_id: int, topic_ids: Collection[str]) -> Collection[str]:
        """Return the names of all topics that a connection has named so far."""
        named = self._topics.setdefault(connection_id, {})
        if new := [one for one in topic_ids if one not in named]:
            named |= await asyncio.to_thread(self.catalog.by_id, new)
        return named.values()

    async def _link(self, context: RequestContext, node: Node, rules: Rules) -> _Link:
        links = self._links.setdefault(context.connection_id, {})
        link = links.get(node.node_id)
        if link is not None and link.node == node:
            await link.log_in(self.nodes.me.node_id, rules)
            return link
        self._close(links.pop(node.node_id, None))
        reader, writer = await asyncio.open_connection(*node.address, ssl=self.tls if node.certificate else None)
        link = _Link(node, reader, writer)
        try:
            _check_certificate(writer.get_extra_info("ssl_object"), node)
            await link.log_in(self.nodes.me.node_id, Rules())  # a stranger may say little: no long list of topics
            await link.log_in(self.nodes.me.node_id, rules)
        except BaseException:
            self._close(link)
            raise
        links[node.node_id] = link
        return link

    def _close(self, link: _Link | None) -> None:
        if link is not None:
            with suppress(OSError):
                link.writer.transport.abort()


def _check_certificate(tls: SSLObject | None, node: Node) -> None:
    """Raise ConnectionError unless the other side has the certificate that the register tells."""
    shown = tls.getpeercert(binary_form=True) if tls is not None else None
    if (sha256(shown).hexdigest() if shown else "") != node.certificate:
        raise ConnectionError(f"node {node.node_id} has another certificate than the register says")
