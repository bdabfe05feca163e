"""Which exceptions and answers mean that a service asks to wait. The classes have the attributes that are documented
for those of the client libraries."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any
from urllib.error import HTTPError

import pyarrow as pa
import pytest

from share_spark.handlers.acknowledgement import Ack, Acknowledgement, Throttle, single_answer
from share_spark.handlers.batch_answers import batch_answers
from share_spark.handlers.throttling import throttle_of
from share_spark.model.config import MOST_DELAY_MS
from share_spark.model.errors import ConfigError, HandlerError
from share_spark.model.requests import Loss

THROTTLED = int(Loss.THROTTLED)


class Headers(dict[str, str]):
    """As of httpx, requests and aiohttp: names in any case."""

    def __init__(self, found: Mapping[str, str]) -> None:
        super().__init__({name.lower(): value for name, value in found.items()})

    def get(self, name: str, default: Any = None) -> Any:
        return super().get(name.lower(), default)


class Response:
    """As of httpx, and of requests, where one of 400 or more is false."""

    def __init__(self, status_code: Any, headers: Any = None) -> None:
        self.status_code = status_code
        self.headers = Headers({}) if headers is None else headers

    def __bool__(self) -> bool:
        return False


class RateLimitError(Exception):
    """As of openai and anthropic (``APIStatusError``); httpx and requests have ``response`` alone."""

    def __init__(self, response: Any) -> None:
        super().__init__("slow down")
        self.response = response
        self.status_code = getattr(response, "status_code", None)


class ClientResponseError(Exception):
    """As of aiohttp."""

    def __init__(self, status: int, headers: Any = None) -> None:
        super().__init__(f"{status}, message='Too Many Requests'")
        self.status, self.headers = status, headers


class Busy(Exception):  # noqa: N818
    """As many clients have it."""

    def __init__(self, retry_after: Any) -> None:
        super().__init__("busy")
        self.retry_after = retry_after


def asked(seconds: str) -> Headers:
    return Headers({"Retry-After": seconds})


@pytest.mark.parametrize(
    ("fault", "delay_ms"),
    [
        (Busy(2), 2_000),
        (Busy(0.25), 250),
        (Busy("30"), 30_000),
        (Busy(0), 0),
        (Busy(1e9), MOST_DELAY_MS),
        (RateLimitError(Response(429, asked("20"))), 20_000),
        (RateLimitError(Response(429)), 1_000),
        (RateLimitError(Response(429, {"Retry-After": "7"})), 7_000),
        (RateLimitError(Response(429, asked("soon"))), 1_000),
        (RateLimitError(Response(503, asked("20"))), 20_000),
        (ClientResponseError(429, asked("3")), 3_000),
        (ClientResponseError(429), 1_000),
        (ClientResponseError(503, asked("3")), 3_000),
        (HTTPError("http://x", 429, "slow down", asked("3"), None), 3_000),  # type: ignore[arg-type]
        (RateLimitError(Response(429, asked("Wed, 21 Oct 2015 07:28:00 GMT"))), 0),
        (RateLimitError(Response(429, asked("Wed, 21 Oct 2915 07:28:00 GMT"))), MOST_DELAY_MS),
        (RateLimitError(Response(429, asked("Wed, 21 Oct 2015 07:28:00 -0000"))), 0),
    ],
)
def test_a_service_asks_to_wait(fault: Exception, delay_ms: int) -> None:
    assert throttle_of(fault) == Throttle(fault, delay_ms)


def test_a_date_is_the_time_until_then() -> None:
    until = datetime.now(UTC) + timedelta(hours=10)
    found = throttle_of(RateLimitError(Response(429, asked(format_datetime(until, usegmt=True)))))
    assert found is not None
    assert 9 * 3_600_000 < found.delay_ms <= 10 * 3_600_000


class Hostile(Exception):  # noqa: N818
    """Each attribute raises."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)


class Lying(int):
    def __ge__(self, other: object) -> bool:
        raise SystemExit


class Everything:
    """Has each attribute, as a mock has."""

    def __getattr__(self, name: str) -> Any:
        return Everything()

    def __call__(self, *_: Any) -> Any:
        return Everything()


@pytest.mark.parametrize(
    "fault",
    [
        ValueError("429"),
        *(Busy(value) for value in (None, True, "soon", "", "-1", -1, float("nan"), float("inf"), "9" * 40, b"3", [])),
        *(Busy(value) for value in (Lying(3), Everything())),
        RateLimitError(None),
        RateLimitError(Response(500, asked("20"))),
        RateLimitError(Response(503)),
        RateLimitError(Response(503, asked("soon"))),
        RateLimitError(Response("429")),
        RateLimitError(Response(429, ["retry-after"])),
        RateLimitError(Everything()),
        ClientResponseError(503),
        Hostile(),
    ],
    ids=repr,
)
def test_anything_else_is_an_ordinary_exception(fault: Exception) -> None:
    assert throttle_of(fault) is None


def test_the_end_of_a_task_is_never_an_exception_of_the_user() -> None:
    class Interrupted(Exception):  # noqa: N818
        @property
        def retry_after(self) -> int:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        throttle_of(Interrupted())


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        (Ack.throttled(), (THROTTLED, None, 1_000)),
        (Ack.throttled("busy", retry_after="2m"), (THROTTLED, "busy", 120_000)),
        (Ack.throttled(ValueError("busy"), retry_after=0.5), (THROTTLED, "ValueError: busy", 500)),
        (Throttle(None, 7), (THROTTLED, None, 7)),
        ("throttled", (THROTTLED, None, 1_000)),
        (Acknowledgement("throttled", "busy"), (THROTTLED, "busy", 1_000)),  # type: ignore[arg-type]
    ],
)
def test_answers_of_a_handler_that_is_throttled(answer: object, found: tuple[int, str | None, int]) -> None:
    assert single_answer(answer) == found


def test_what_is_no_time_is_refused() -> None:
    with pytest.raises(ConfigError, match="not a duration: 'soon'"):
        Ack.throttled(retry_after="soon")
    with pytest.raises(HandlerError, match="a delay_ms of -1, not 0 to 30 days"):
        single_answer(Throttle(None, -1))
    with pytest.raises(HandlerError, match="answered 107"):
        single_answer(THROTTLED)


@pytest.mark.parametrize(
    ("answer", "codes", "delays", "errors"),
    [
        (Ack.throttled(retry_after=2), [THROTTLED] * 3, {0: 2_000, 1: 2_000, 2: 2_000}, {}),
        ([1, Ack.throttled("busy"), Ack.release(delay=9)], [1, THROTTLED, 2], {1: 1_000, 2: 9_000}, {1: "busy"}),
        (pa.array(["accept", "throttled", "Throttled"]), [1, THROTTLED, THROTTLED], {1: 1_000, 2: 1_000}, {}),
        (
            pa.table(
                {"ack": ["throttled", "throttled", "reject"], "delay_ms": [None, 5, 6], "error": ["x", None, None]}
            ),
            [THROTTLED, THROTTLED, 3],
            {0: 1_000, 1: 5},
            {0: "x"},
        ),
        (
            pa.table({"ack": ["throttled", "accept", "accept"], "delay_ms": [-1, -1, None]}),
            [2, 1, 1],
            {},
            {0: "answered with a delay_ms of -1, not 0 to 30 days"},
        ),
    ],
)
def test_answers_for_a_batch(answer: Any, codes: list[int], delays: dict[int, int], errors: dict[int, str]) -> None:
    found = batch_answers(answer, 3)
    assert (found.codes.tolist(), found.delays(), found.errors()) == (codes, delays, errors)
