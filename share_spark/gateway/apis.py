"""The requests that are served: one line of a table each, which is also what ApiVersions answers."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from functools import cache

from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.static.protocol import RequestPayload, ResponsePayload

from share_spark.gateway.message_maker import make_message
from share_spark.gateway.message_reader import MalformedRequestError


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """One kind of request. ``is_served`` False: only named by ApiVersions; who sends one is disconnected."""

    key: int
    name: str
    versions: range
    is_served: bool = True


# Up to the version without the largest timestamp: who asks for it finds out that it is not known.
LIST_OFFSETS = Api(key=2, name="ListOffsets", versions=range(1, 7))
LIST_GROUPS = Api(key=16, name="ListGroups", versions=range(6))
# A client of version 0 would send the exchange without frames of requests; no present one does, and it is disconnected.
SASL_HANDSHAKE = Api(key=17, name="SaslHandshake", versions=range(2))
API_VERSIONS = Api(key=18, name="ApiVersions", versions=range(5))
METADATA = Api(key=3, name="Metadata", versions=range(14))
FIND_COORDINATOR = Api(key=10, name="FindCoordinator", versions=range(7))
SASL_AUTHENTICATE = Api(key=36, name="SaslAuthenticate", versions=range(3))
DESCRIBE_CONFIGS = Api(key=32, name="DescribeConfigs", versions=range(1, 5))
DELETE_GROUPS = Api(key=42, name="DeleteGroups", versions=range(3))
INCREMENTAL_ALTER_CONFIGS = Api(key=44, name="IncrementalAlterConfigs", versions=range(2))
DESCRIBE_CLUSTER = Api(key=60, name="DescribeCluster", versions=range(3))
DESCRIBE_TOPIC_PARTITIONS = Api(key=75, name="DescribeTopicPartitions", versions=range(1))
SHARE_GROUP_HEARTBEAT = Api(key=76, name="ShareGroupHeartbeat", versions=range(1, 2))
SHARE_GROUP_DESCRIBE = Api(key=77, name="ShareGroupDescribe", versions=range(1, 2))
SHARE_FETCH = Api(key=78, name="ShareFetch", versions=range(1, 3))
SHARE_ACKNOWLEDGE = Api(key=79, name="ShareAcknowledge", versions=range(1, 3))
# Of the state of share-partitions. The later versions have a count of finished records, which is not kept here.
INITIALIZE_SHARE_GROUP_STATE = Api(key=83, name="InitializeShareGroupState", versions=range(1))
READ_SHARE_GROUP_STATE = Api(key=84, name="ReadShareGroupState", versions=range(1))
WRITE_SHARE_GROUP_STATE = Api(key=85, name="WriteShareGroupState", versions=range(1))
DELETE_SHARE_GROUP_STATE = Api(key=86, name="DeleteShareGroupState", versions=range(1))
READ_SHARE_GROUP_STATE_SUMMARY = Api(key=87, name="ReadShareGroupStateSummary", versions=range(1))
DESCRIBE_SHARE_GROUP_OFFSETS = Api(key=90, name="DescribeShareGroupOffsets", versions=range(2))
ALTER_SHARE_GROUP_OFFSETS = Api(key=91, name="AlterShareGroupOffsets", versions=range(1))
DELETE_SHARE_GROUP_OFFSETS = Api(key=92, name="DeleteShareGroupOffsets", versions=range(1))

# librdkafka asks for the versions again without a pause unless a broker has these. The telemetry (71, 72) is left out:
# clients that see it send it.
_NAMED_ONLY = (
    Api(key=0, name="Produce", versions=range(3, 14), is_served=False),
    Api(key=1, name="Fetch", versions=range(4, 19), is_served=False),
)

_APIS = {
    api.key: api
    for api in (
        *_NAMED_ONLY,
        LIST_OFFSETS,
        METADATA,
        FIND_COORDINATOR,
        LIST_GROUPS,
        SASL_HANDSHAKE,
        API_VERSIONS,
        SASL_AUTHENTICATE,
        DESCRIBE_CONFIGS,
        DELETE_GROUPS,
        INCREMENTAL_ALTER_CONFIGS,
        DESCRIBE_CLUSTER,
        DESCRIBE_TOPIC_PARTITIONS,
        SHARE_GROUP_HEARTBEAT,
        SHARE_GROUP_DESCRIBE,
        SHARE_FETCH,
        SHARE_ACKNOWLEDGE,
        INITIALIZE_SHARE_GROUP_STATE,
        READ_SHARE_GROUP_STATE,
        WRITE_SHARE_GROUP_STATE,
        DELETE_SHARE_GROUP_STATE,
        READ_SHARE_GROUP_STATE_SUMMARY,
        DESCRIBE_SHARE_GROUP_OFFSETS,
        ALTER_SHARE_GROUP_OFFSETS,
        DELETE_SHARE_GROUP_OFFSETS,
    )
}


OF_LOGIN = (SASL_HANDSHAKE.key, SASL_AUTHENTICATE.key)
"""The requests that are a part of the login."""

BEFORE_LOGIN = (API_VERSIONS.key, *OF_LOGIN)
"""The requests that are answered before the client has logged in."""


def served_versions() -> list[tuple[Api, int]]:
    """Return each version of each API that is served."""
    return [(api, version) for api in _APIS.values() if api.is_served for version in api.versions]


@cache
def request_type(key: int, version: int) -> type[RequestPayload]:
    """Return the class of a request. Raises MalformedRequestError: it is not served."""
    api = _APIS.get(key)
    if api is None or not api.is_served:
        raise MalformedRequestError(f"requests of API {key if api is None else api.name} are not served")
    if version not in api.versions:
        raise MalformedRequestError(f"version {version} of {api.name} is not served")
    return load_request_schema(key, version)


def api_versions_answer(version: int) -> ResponsePayload:
    """Return what is served. A ``version`` of the question that is not gets an answer of version 0: the error
    UNSUPPORTED_VERSION, and the versions of this API, from which the client chooses (KIP-511)."""
    if version in API_VERSIONS.versions:
        return _versions(version, ErrorCode.none, tuple(_APIS.values()))
    return _versions(0, ErrorCode.unsupported_version, (API_VERSIONS,))


@cache
def _versions(version: int, error: ErrorCode, apis: tuple[Api, ...]) -> ResponsePayload:
    entries = [{"api_key": api.key, "min_version": api.versions[0], "max_version": api.versions[-1]} for api in apis]
    values = {"error_code": error, "api_keys": entries, "throttle_time": timedelta()}
    return make_message(load_response_schema(API_VERSIONS.key, version), values)
