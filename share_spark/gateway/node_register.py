"""The register of the gateways that share a state location: a small file of each, which it writes again and again.

A file that does not change belongs to a gateway that has ended, or is frozen. Times are those of the reader's own
clock, between two looks, so clocks need not agree. Nothing depends on the register but who answers whom: the claim in
the log decides who has a group. Two gateways that disagree for a moment take it from each other, and lose nothing.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from share_spark.delta.location import Location
from share_spark.gateway.nodes import Node
from share_spark.kafka.broker_connection import Address
from share_spark.maintenance.heartbeat import SmallFile, age_ms
from share_spark.model.errors import EnvironmentFault
from share_spark.spark.hadoop_files import files_at

_log = logging.getLogger(__name__)

_DIRECTORY = "_gateways"

BEAT_S = 1.0
"""The time between two writes of a file."""

SILENT_S = 5.0
"""The time after which a gateway whose file does not change counts as gone."""


class _Seen(NamedTuple):
    """A file of another node. ``at_s``: when it was first seen with this ``text``."""

    node: Node
    text: str
    at_s: float


@dataclass(slots=True, kw_only=True)
class NodeRegister:
    """``Nodes`` that tell of each other in files. ``on_change``: called, in a thread of its own, when others have come
    or gone; True: this node may have counted as gone meanwhile."""

    directory: str
    me: Node
    on_change: Callable[[bool], None] = lambda _: None
    clock: Callable[[], float] = time.monotonic
    _live: tuple[Node, ...] = ()
    _seen: dict[str, _Seen] = field(default_factory=dict)
    _beats: int = 0
    _written_s: float = 0.0
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    @classmethod
    def at(cls, state: Location, me: Node) -> NodeRegister:
        """Return the register of the gateways on this state, with the others as they are now. Raises EnvironmentFault:
        another one has the id of ``me``."""
        found = cls(directory=f"{state}/{_DIRECTORY}", me=me)
        try:
            found._refuse_double()
            found.look()
        except OSError as fault:
            raise found._unusable(fault) from fault
        return found

    @property
    def live(self) -> Sequence[Node]:
        """See ``Nodes``."""
        return self._live or (self.me,)

    def start(self, address: Address, on_change: Callable[[bool], None]) -> None:
        """Tell the others of this node, at this address, from now on. Raises EnvironmentFault."""
        self.me, self.on_change = self.me._replace(address=address), on_change
        try:
            self.beat()
        except OSError as fault:
            raise self._unusable(fault) from fault
        self.look()
        self._thread = threading.Thread(target=self._run, name="share-spark-nodes", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Tell the others that this node is gone. Safe to call twice."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
            self._file(self.me.node_id).delete()

    # ------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stop.wait(BEAT_S):
            before = self._live
            try:
                was_silent = self.beat()
                self.look()
                if was_silent or before != self._live:
                    _log.info("the gateways are now those with the ids %s", [one.node_id for one in self.live])
                    # Beside all else: engines may take longer to end than a file may be silent.
                    threading.Thread(target=self.on_change, args=(was_silent,), daemon=True).start()
            except Exception:  # noqa: BLE001 - the storage may answer the next time
                _log.warning("the register of gateways in %s cannot be used now", self.directory, exc_info=True)

    def beat(self) -> bool:
        """Write the file. Return whether the time since the last write was so long that others may have missed it."""
        self._beats += 1
        self._file(self.me.node_id).write(_text_of(self.me, self._beats))
        before_s, self._written_s = self._written_s, self.clock()
        return self._beats > 1 and self._written_s - before_s >= SILENT_S

    def look(self) -> None:
        """Read the files of the others. What is not seen to change any more is left out."""
        names = files_at(None, self.directory).names(self.directory)
        self._seen = {name: seen for name in names if (seen := self._seen_now(name)) is not None}
        alive = (one.node for one in self._seen.values() if self.clock() - one.at_s < SILENT_S)
        self._live = tuple(sorted((self.me, *(node for node in alive if node.node_id != self.me.node_id))))

    def _seen_now(self, name: str) -> _Seen | None:
        """Look at one file. One that is being written just now is as before. At the first sight of one, its time has to
        do."""
        file, before, now_s = SmallFile.of(None, f"{self.directory}/{name}"), self._seen.get(name), self.clock()
        text = file.read()
        node = _node_in(text)
        if node is None or (before is not None and text == before.text):
            return before
        is_old = before is None and (age_ms(file) or 0) >= SILENT_S * 1_000
        return _Seen(node, text, now_s - SILENT_S if is_old else now_s)

    def _refuse_double(self) -> None:
        """Wait until it is known that no other gateway has this id. At the address of this one there can be none."""
        file, until_s = self._file(self.me.node_id), self.clock() + SILENT_S
        if (age_ms(file) or 0) >= SILENT_S * 1_000:
            return
        first = file.read()
        other = _node_in(first)
        while other is not None and other.address != self.me.address and self.clock() < until_s:
            time.sleep(BEAT_S / 4)
            if (now := file.read()) and now != first:
                text = f"node id {self.me.node_id} is that of the gateway at {other.address}: choose another --node-id"
                raise EnvironmentFault(text)

    def _unusable(self, fault: OSError) -> EnvironmentFault:
        return EnvironmentFault(f"gateways cannot be registered in {self.directory}: {fault.strerror or fault}")

    def _file(self, node_id: int) -> SmallFile:
        return SmallFile.of(None, f"{self.directory}/{node_id}")


def _text_of(node: Node, beats: int) -> str:
    host, port = node.address
    return json.dumps({**node._asdict(), "address": None, "host": host, "port": port, "beats": beats})


def _node_in(text: str) -> Node | None:
    """Return the node that a file tells of; None: it is being written just now, or gone."""
    try:
        said = json.loads(text)
        address = Address(said["host"], said["port"])
        return Node(said["node_id"], address, said["secret"], said["certificate"])
    except (ValueError, KeyError, TypeError):
        return None
