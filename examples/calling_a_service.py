"""Calling a service: a hundred calls at a time in one process, and a service that says "not so fast" costs no attempt.

    python examples/calling_a_service.py

The service is a small HTTP server in this program. It takes 50 ms for an answer, and refuses every fifth request.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from threading import Thread

from pyspark.sql import SparkSession

from share_spark import Ack, EmbeddedTopicLog, Message, Record, ShareGroup, build_session


class Summarize:
    """A handler with a client of the service. ``port``: the service's."""

    def __init__(self, port: int) -> None:
        self.port = port

    async def __call__(self, record: Record) -> tuple[Ack, dict[str, object]] | Ack:
        """Ask the service. ``Ack.throttled`` gives the record back, uncounted, and slows the group down."""
        status, text = await get(self.port, f"/{record.offset}")
        if status == 429:
            return Ack.throttled(retry_after=0.1)
        return Ack.ACCEPT, {"offset": record.offset, "summary": text}


async def get(port: int, path: str) -> tuple[int, str]:
    """Return the status and the text of an answer. Your code has a client here: httpx, aiohttp, openai."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.0\r\n\r\n".encode())
    answer = (await reader.read()).decode()
    writer.close()
    return int(answer.split()[1]), answer.rpartition("\r\n")[2]


@contextmanager
def service() -> Iterator[int]:
    """Run the service, and yield its port."""
    asked = count(1)

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            time.sleep(0.05)
            self.send_response(429 if next(asked) % 5 == 0 else 200)
            self.end_headers()
            self.wfile.write(f"summary of {self.path[1:]}".encode())

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


def main(spark: SparkSession, lake: str) -> None:
    """Let a service summarize two hundred documents."""
    topics = EmbeddedTopicLog(spark, f"{lake}/topics")
    topics.create_topic("documents", partitions=1)
    topics.append("documents", [Message(b"a long text")] * 200)

    with service() as port:
        query = (
            ShareGroup("summaries", spark=spark, state=f"{lake}/queues")
            .table(f"{lake}/topics")
            .subscribe("documents")
            .process(Summarize(port), output="offset bigint, summary string")
            .to_delta(f"{lake}/summaries")
            .option("delivery.max.in.flight", 100)
            .option("share.auto.offset.reset", "earliest")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    summaries = spark.read.format("delta").load(f"{lake}/summaries")
    print(summaries.select("offset").distinct().count(), "documents have", summaries.count(), "summaries")


if __name__ == "__main__":
    main(build_session("calling a service"), tempfile.mkdtemp(prefix="share-spark-"))
