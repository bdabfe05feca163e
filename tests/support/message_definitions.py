"""Kafka's own definitions of its messages, from the jar of its clients: random messages by them, and an encoder that
knows nothing of ours or of kio's."""

from __future__ import annotations

import json
import struct
import zipfile
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, NamedTuple
from uuid import UUID

from share_spark.spark.jars import broker_jar_paths

Values = dict[str, Any]
"""A message: values by the names of the definition. Structs are mappings, arrays lists, durations numbers."""

NUMBERS = {"int8": ">b", "int16": ">h", "int32": ">i", "int64": ">q"}
ERRORS = (-1, 0, 6, 14, 25, 110, 121, 122)


class Member(NamedTuple):
    """A field of one version. ``kind``: without the ``[]`` of an array."""

    name: str
    kind: str
    is_array: bool
    nullable: bool
    tag: int | None
    default: Any


class Definition(NamedTuple):
    """A message in one version. ``structs``: the members of each struct by its name, "" for the message itself."""

    structs: Mapping[str, list[Member]]
    flexible: bool


@cache
def definitions() -> dict[tuple[int, str], dict[str, Any]]:
    """The definitions by API key and by "request" or "response"."""
    (jar,) = (path for path in broker_jar_paths() if Path(path).name.startswith("kafka-clients-"))
    found = {}
    with zipfile.ZipFile(jar) as files:
        for name in files.namelist():
            if name.startswith("common/message/") and name.endswith(".json"):
                lines = files.read(name).decode().splitlines()
                read = json.loads("\n".join(line for line in lines if not line.lstrip().startswith("//")))
                if "apiKey" in read:
                    found[read["apiKey"], read["type"]] = read
    return found


def definition(api_key: int, kind: str, version: int) -> Definition:
    read = definitions()[api_key, kind]
    assert version in _versions(read["validVersions"])
    structs: dict[str, list[Member]] = {}
    _collect("", read["fields"], version, structs)
    for common in read.get("commonStructs", ()):
        _collect(common["name"], common["fields"], version, structs)
    return Definition(structs, version in _versions(read["flexibleVersions"]))


def _collect(name: str, fields: list[dict[str, Any]], version: int, structs: dict[str, list[Member]]) -> None:
    structs[name] = [_member(field, version) for field in fields if version in _versions(field["versions"])]
    for field in fields:
        if "fields" in field:
            _collect(field["type"].removeprefix("[]"), field["fields"], version, structs)


def _member(field: Mapping[str, Any], version: int) -> Member:
    tagged = version in _versions(field.get("taggedVersions", "none"))
    return Member(
        name=field["name"],
        kind=field["type"].removeprefix("[]"),
        is_array=field["type"].startswith("[]"),
        nullable=version in _versions(field.get("nullableVersions", "none")),
        tag=field["tag"] if tagged else None,
        default=field.get("default"),
    )


def _versions(text: str) -> range:
    if text == "none":
        return range(0)
    first, dash, last = text.removesuffix("+").partition("-")
    return range(int(first), 1 << 15 if text.endswith("+") else int(last if dash else first) + 1)


# ------------------------------------------------------------------------------------------------ random


def random_message(of: Definition, random: Random, struct_name: str = "") -> Values:
    return {member.name: _random_field(of, member, random) for member in of.structs[struct_name]}


def _random_field(of: Definition, member: Member, random: Random) -> Any:
    if member.nullable and random.random() < 0.2:
        return None
    if member.is_array:
        # A length of 130 takes two bytes; arrays in arrays stay short.
        lengths = (0, 1, 1, 2) if member.kind in of.structs else (0, 1, 2, 130)
        return [_random_value(of, member, random) for _ in range(random.choice(lengths))]
    return _random_value(of, member, random)


def _random_value(of: Definition, member: Member, random: Random) -> Any:
    match member.kind:
        case "int16" if member.name == "ErrorCode":
            return random.choice(ERRORS)
        case "int64" if member.name.endswith("Ms"):
            return random.choice((0, 1, 3_600_000))  # kio has a timedelta for it
        case "int8" | "int16" | "int32" | "int64":
            top = 1 << 8 * struct.calcsize(NUMBERS[member.kind]) - 1
            return random.choice((0, 1, -1, top - 1, -top, random.randrange(-top, top)))
        case "bool":
            return random.random() < 0.5
        case "string":
            return "".join(random.choices("aß€😀\0", k=random.choice((0, 1, 5, 200))))
        case "records" | "bytes":
            return random.randbytes(random.choice((0, 1, 61, 200, 20_000)))
        case "uuid":
            return random.choice((UUID(int=0), UUID(int=random.getrandbits(128))))
        case name:
            return random_message(of, random, name)


# ----------------------------------------------------------------------------------------------- encoded


def encoded(of: Definition, values: Values, strangers: Random | None = None) -> bytes:
    """The bytes of a message. ``strangers``: adds tagged fields that nobody knows."""
    return b"".join(_struct(of, "", values, strangers))


def _struct(of: Definition, name: str, values: Values, strangers: Random | None) -> Iterator[bytes]:
    members = of.structs[name]
    for member in members:
        if member.tag is None:
            yield from _field(of, member, values[member.name], strangers)
    if not of.flexible:
        return
    tags = {
        member.tag: b"".join(_field(of, member, values[member.name], strangers))
        for member in members
        if member.tag is not None and not _is_default(member, values[member.name])
    }
    if strangers is not None and strangers.random() < 0.3:
        tags |= {1000 + number: strangers.randbytes(strangers.choice((0, 3, 300))) for number in range(3)}
    yield varint(len(tags))
    for tag in sorted(tags):
        yield varint(tag) + varint(len(tags[tag])) + tags[tag]


def _is_default(member: Member, value: Any) -> bool:
    if member.is_array:
        return value == []
    return str(value).lower() == str(member.default).lower()


def _field(of: Definition, member: Member, value: Any, strangers: Random | None) -> Iterator[bytes]:
    if not member.is_array:
        yield from _one(of, member, value, strangers)
        return
    count = -1 if value is None else len(value)
    yield varint(count + 1) if of.flexible else struct.pack(">i", count)
    for each in value or ():
        yield from _one(of, member._replace(nullable=False), each, strangers)


def _one(of: Definition, member: Member, value: Any, strangers: Random | None) -> Iterator[bytes]:
    match member.kind:
        case "int8" | "int16" | "int32" | "int64":
            yield struct.pack(NUMBERS[member.kind], value)
        case "bool":
            yield b"\x01" if value else b"\x00"
        case "uuid":
            yield value.bytes
        case "string" | "records" | "bytes":
            content = value.encode() if isinstance(value, str) else value
            size = -1 if content is None else len(content)
            yield varint(size + 1) if of.flexible else struct.pack(">h" if member.kind == "string" else ">i", size)
            yield content or b""
        case name:
            if member.nullable:
                yield b"\xff" if value is None else b"\x01"
            if value is not None:
                yield from _struct(of, name, value, strangers)


def varint(number: int) -> bytes:
    """LEB128, group by group from the low end."""
    low, rest = number & 127, number >> 7
    return bytes([low | 128]) + varint(rest) if rest else bytes([low])
