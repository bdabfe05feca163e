"""Handlers that get decoded values, behind a running group."""

from __future__ import annotations

import json
import sys
import threading
import types
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from pyspark import cloudpickle

from share_spark.topics.topic_producer import Message
from tests.spark.test_share_group import GroupPlace

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JOB = """
from __future__ import annotations

import dataclasses
import datetime

from share_spark import Ack, Record


@dataclasses.dataclass(slots=True)
class Item:
    price: int


@dataclasses.dataclass
class Order:
    id: int
    at: datetime.datetime
    items: list[Item]


def alone(order: Order) -> Ack:
    return Ack.reject(f"{order.id} of {order.at:%Y} for {sum(one.price for one in order.items)}")


def in_record(record: Record[Order]) -> Ack:
    return alone(record.value)


async def waits(order: Order) -> Ack:
    return alone(order)


async def of_list(records: list[Record[Order]]) -> list[Ack]:
    return [alone(record.value) for record in records]


class Asks:
    def __call__(self, order: Order) -> Ack:
        return alone(order)
"""


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A module that the workers do not have, as a script is one: its classes travel."""
    module = types.ModuleType("script_of_a_user")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(JOB, module.__dict__)  # noqa: S102
    cloudpickle.register_pickle_by_value(module)
    yield module
    cloudpickle.unregister_pickle_by_value(module)


@pytest.mark.parametrize(
    ("name", "settings"),
    [("alone", {}), ("in_record", {}), ("waits", {}), ("of_list", {}), ("Asks", {}), ("alone", {"threads": 2})],
)
def test_classes_of_a_script_travel(
    spark: SparkSession, tmp_path: Path, job: Any, name: str, settings: dict[str, Any]
) -> None:
    place = GroupPlace(spark, tmp_path)
    order = b'{"id": 7, "at": "2026-11-25T12:00:00Z", "items": [{"price": 2}, {"price": 3}]}'
    place.log.append("orders", [Message(value, partition=0) for value in (order, b"{}", b"\xff", None)])
    group = place.group(getattr(job, name)).process(getattr(job, name), **settings)
    assert group.trigger(availableNow=True).start().awaitTermination(120)
    missing = "; ".join(f"{field}: Field required" for field in ("id", "at", "items"))
    rows = spark.read.format("delta").load(str(tmp_path / "dead")).orderBy("offset").collect()
    assert [row.delivery_count for row in rows] == [1] * 4
    first, second, third, fourth = (row.error for row in rows)
    assert (first, second, fourth) == ("7 of 2026 for 5", f"the value is no Order: {missing}", "the value is null")
    assert third.startswith("the value is no Order: Invalid JSON: ")


AVRO = json.dumps({"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]})


class Registry(BaseHTTPRequestHandler):
    """A schema registry that is away for its first answers about a schema."""

    asked = 0

    def do_GET(self) -> None:
        is_schema = self.path.startswith("/schemas/ids/")
        Registry.asked += is_schema
        self.send_response(404 if not is_schema else 503 if Registry.asked <= 2 else 200)
        self.send_header("content-type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps({"schema": AVRO} if is_schema else {"error_code": 404, "message": ""}).encode())

    def log_message(self, *_: object) -> None: ...


def test_a_registry_that_is_away_costs_attempts_and_no_record(spark: SparkSession, tmp_path: Path) -> None:
    serializer = AvroSerializer(SchemaRegistryClient.new_client({"url": "mock://orders"}), AVRO)
    values = [serializer({"id": at}, SerializationContext("orders", MessageField.VALUE)) for at in range(5)]
    place = GroupPlace(spark, tmp_path)
    place.log.append("orders", [Message(value, partition=0) for value in (*values, values[0][:4])])
    calls = tmp_path / "calls"

    def bill(order: dict[str, int]) -> None:
        with calls.open("a") as file:
            file.write(f"{order['id']}\n")

    with ThreadingHTTPServer(("127.0.0.1", 0), Registry) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"

        def decoder() -> AvroDeserializer:
            return AvroDeserializer(SchemaRegistryClient({"url": url, "max.retries": 0}))

        group = place.group(bill).process(bill, value_from=decoder)
        assert group.trigger(availableNow=True).start().awaitTermination(120)
        server.shutdown()
    assert Counter(map(int, calls.read_text().split())) == dict.fromkeys(range(5), 1)
    assert sum(one.redelivered for one in place.progress) == 2
    ((_, count, _, error),) = place.dead()
    assert count == 1
    assert error.startswith("the value cannot be decoded: SerializationError: Expecting data framing of length 6")
