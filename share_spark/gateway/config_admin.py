"""DescribeConfigs and IncrementalAlterConfigs for groups (R146): a group's dynamic configs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from kio.index import load_response_schema
from kio.schema.errors import ErrorCode as WireError
from kio.static.protocol import ResponsePayload

from share_spark.gateway.access import Grant
from share_spark.gateway.apis import DESCRIBE_CONFIGS, INCREMENTAL_ALTER_CONFIGS
from share_spark.gateway.handler import RequestContext
from share_spark.gateway.message_maker import make_message
from share_spark.gateway.served_groups import ServedGroups
from share_spark.model.dynamic_config import ConfigEntry, ConfigSource
from share_spark.model.errors import ErrorCode, ShareError

_GROUP = 32
"""The type of resource of which there are configs here."""

_SET, _DELETE = 0, 1
"""Operations; the others are for lists, which no setting is."""

_SOURCES: Mapping[ConfigSource, int] = {
    ConfigSource.DYNAMIC_GROUP_CONFIG: 8,
    ConfigSource.JOB_CONFIG: 4,  # where Kafka has the broker's own configuration
    ConfigSource.DEFAULT_CONFIG: 5,
}
"""Kafka's numbers of sources."""


class _RefusedRequestError(ShareError):
    code = ErrorCode.INVALID_REQUEST


@dataclass(frozen=True, slots=True)
class ConfigAdmin:
    """The answers to requests about configs."""

    groups: ServedGroups

    async def describe(self, context: RequestContext, request: Any) -> ResponsePayload:
        """Answer a DescribeConfigs."""
        results = [await self._described(one, request.include_synonyms, context.grant) for one in request.resources]
        values = {"throttle_time": timedelta(), "results": results}
        return make_message(load_response_schema(DESCRIBE_CONFIGS.key, context.api_version), values)

    async def _described(self, resource: Any, include_synonyms: bool, grant: Grant) -> dict[str, Any]:
        try:
            await self._check(resource, grant)
            found = await asyncio.to_thread(self.groups.stored.configs, resource.resource_name)
        except ShareError as fault:
            return {**_outcome(resource, fault), "configs": ()}
        wanted = resource.configuration_keys
        configs = [_config(one, include_synonyms) for one in found if wanted is None or one.name in wanted]
        return {**_outcome(resource, None), "configs": configs}

    async def alter(self, context: RequestContext, request: Any) -> ResponsePayload:
        """Answer an IncrementalAlterConfigs: each group by itself, all of its configs or none."""
        responses = [await self._altered(one, request.validate_only, context.grant) for one in request.resources]
        values = {"throttle_time": timedelta(), "responses": responses}
        return make_message(load_response_schema(INCREMENTAL_ALTER_CONFIGS.key, context.api_version), values)

    async def _altered(self, resource: Any, validate_only: bool, grant: Grant) -> dict[str, Any]:
        try:
            await self._check(resource, grant)
            _check_operations(resource.configs)
            await asyncio.to_thread(
                self.groups.stored.alter_configs,
                resource.resource_name,
                {one.name: one.value or "" for one in resource.configs if one.config_operation == _SET},
                [one.name for one in resource.configs if one.config_operation == _DELETE],
                validate_only=validate_only,
            )
        except ShareError as fault:
            return _outcome(resource, fault)
        return _outcome(resource, None)

    async def _check(self, resource: Any, grant: Grant) -> None:
        if resource.resource_type != _GROUP:
            raise _RefusedRequestError("Only groups have configs here.")
        await grant.require_group(resource.resource_name)
        if not resource.resource_name or not self.groups.serves(resource.resource_name):
            raise _RefusedRequestError("This gateway does not serve a group of this name.")


def _check_operations(configs: Iterable[Any]) -> None:
    for one in configs:
        if one.config_operation not in (_SET, _DELETE):
            raise _RefusedRequestError(f"{one.name} is no list: it can be set or deleted.")


def _outcome(resource: Any, fault: ShareError | None) -> dict[str, Any]:
    return {
        "error_code": WireError.none if fault is None else WireError(fault.code),
        "error_message": None if fault is None else str(fault),
        "resource_type": resource.resource_type,
        "resource_name": resource.resource_name,
    }


def _config(entry: ConfigEntry, include_synonyms: bool) -> dict[str, Any]:
    synonyms = entry.synonyms if include_synonyms else ()
    return {
        "name": entry.name,
        "value": entry.value,
        "read_only": False,
        "config_source": _SOURCES[entry.source],
        "is_sensitive": False,
        "synonyms": [{"name": entry.name, "value": one.value, "source": _SOURCES[one.source]} for one in synonyms],
        "documentation": None,
    }
