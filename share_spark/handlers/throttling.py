"""Exceptions by which a service asks a handler to wait, recognized by their attributes: no client library is imported.

    seen on                                                  attributes
    the exception                                            retry_after: seconds
    its ``response`` (openai, anthropic, httpx, requests)    status_code 429, headers with retry-after or without
    the exception itself (aiohttp, urllib)                   status 429, headers with retry-after or without
    either of the last two                                   503, if the headers have retry-after

Whatever does not look exactly like that is an ordinary exception.
"""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from share_spark.handlers.acknowledgement import DEFAULT_THROTTLE_MS, Throttle
from share_spark.handlers.error_texts import NO_FAULTS
from share_spark.model.config import MOST_DELAY_MS

TOO_MANY_REQUESTS, UNAVAILABLE = 429, 503

_SECONDS = re.compile(r"\d{1,12}(\.\d{1,9})?", re.ASCII)


def throttle_of(fault: BaseException) -> Throttle | None:
    """Return the throttle that this exception means; None if it is an ordinary one. Raises only NO_FAULTS: the
    attributes are the user's code."""
    try:
        wait_s = _wait_s(fault)
    except NO_FAULTS:
        raise
    except BaseException:  # noqa: BLE001 - an exception that cannot be looked at is an ordinary one
        return None
    return None if wait_s is None else Throttle(fault, min(round(wait_s * 1_000), MOST_DELAY_MS))


def _wait_s(fault: Any) -> float | None:
    """Return how long to wait, None if nobody has asked for that. Raises what the attributes raise."""
    asked_s = _seconds(getattr(fault, "retry_after", None))
    if asked_s is not None:
        return asked_s
    # A response of 429 is false in requests.
    for answer in (one for one in (getattr(fault, "response", None), fault) if one is not None):
        status, header_s = _status(answer), _header_s(getattr(answer, "headers", None))
        if status == TOO_MANY_REQUESTS:
            return DEFAULT_THROTTLE_MS / 1_000 if header_s is None else header_s
        if status == UNAVAILABLE and header_s is not None:
            return header_s
    return None


def _status(answer: Any) -> int | None:
    found = (getattr(answer, name, None) for name in ("status_code", "status"))
    return next((int(one) for one in found if isinstance(one, int)), None)


def _header_s(headers: Any) -> float | None:
    """Return the time that the headers ask for, None if they do not, or not in a form that the standard has. Headers
    are looked up as they are written in most plain dictionaries, too."""
    if headers is None:
        return None
    found = (headers.get(name) for name in ("retry-after", "Retry-After"))
    text = next((one for one in found if one is not None), None)
    asked_s = _seconds(text)
    return asked_s if asked_s is not None or type(text) is not str else _until_s(text)


def _seconds(value: object) -> float | None:
    """Return a number of seconds, or the text of one; None for anything else."""
    if type(value) is str:
        return float(value) if _SECONDS.fullmatch(value.strip()) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) and value >= 0 else None


def _until_s(date: str) -> float | None:
    """Return the time until an HTTP date, 0 if it is past; None if it is none."""
    try:
        until = parsedate_to_datetime(date)
    except ValueError:
        return None
    left = (until if until.tzinfo is not None else until.replace(tzinfo=UTC)) - datetime.now(UTC)
    return max(left.total_seconds(), 0.0)
