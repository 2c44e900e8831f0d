"""When a delivery is tried again, how fast, and how fast deliveries may follow each other."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polymq.gateways.http_cloudevents.retry import (
    RetryPolicy,
    TokenBucket,
    Verdict,
    retry_after_seconds,
    verdict_of,
)

VERDICTS = {
    **dict.fromkeys([200, 201, 202, 204, 206, 299], Verdict.DELIVERED),
    **dict.fromkeys([404, 408, 409, 429, 500, 502, 503, 504, 599], Verdict.RETRY),
    **dict.fromkeys([400, 401, 403, 405, 413, 415, 422, 431, 451], Verdict.REJECTED),
    **dict.fromkeys([301, 302, 303, 304, 307, 308], Verdict.REJECTED),
    410: Verdict.GONE,
}


@pytest.mark.parametrize(("status", "verdict"), VERDICTS.items())
def test_what_an_answer_means(status: int, verdict: Verdict) -> None:
    """Knative's table; 410 by the webhook specification; redirects are refusals."""
    assert verdict_of(status) is verdict


def test_waits_double_up_to_their_bound() -> None:
    policy = RetryPolicy(attempts_max=9, first_seconds=1.0, wait_seconds_max=10.0)
    waits = [policy.wait_seconds(attempt, 0.5, None) for attempt in range(1, 7)]
    assert waits == [0.5, 1.0, 2.0, 4.0, 5.0, 5.0]


@given(st.integers(1, 100_000), st.floats(0, 1, exclude_max=True))
def test_jitter_is_full(attempts: int, random: float) -> None:
    """Anything between nothing and the bound, whatever the number of failures."""
    policy = RetryPolicy(first_seconds=0.25, wait_seconds_max=60.0)
    assert 0.0 <= policy.wait_seconds(attempts, random, None) < 60.0
    assert policy.wait_seconds(attempts, 0.0, None) == 0.0


def test_retry_after_is_obeyed_if_it_is_longer() -> None:
    policy = RetryPolicy(first_seconds=8.0)
    assert policy.wait_seconds(1, 0.5, 30.0) == 30.0
    assert policy.wait_seconds(1, 0.5, 1.0) == 4.0


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, None),
        ("120", 120.0),
        (" 0 ", 0.0),
        ("99999999999999999999", 3600.0),
        ("-5", None),
        ("1.5", None),
        ("soon", None),
        ("", None),
        ("\u0661\u0662", None),
        ("Fri, 20 Nov 2026 12:01:00 GMT", 60.0),
        ("Fri, 20 Nov 2026 11:00:00 GMT", 0.0),
        ("Fri, 20 Nov 2026 12:01:00 -0000", 60.0),
        ("Fri, 20 Nov 2036 12:00:00 GMT", 3600.0),
        ("Fri, 99 Nov 2026 12:00:00 GMT", None),
    ],
)
def test_retry_after_header(header: str | None, seconds: float | None) -> None:
    """RFC 9110 10.2.3: seconds or a date; nonsense asks for nothing."""
    noon = 1_795_176_000.0  # 2026-11-20 12:00 UTC
    assert retry_after_seconds(header, now_seconds=noon, maximum=3600.0) == seconds


def test_token_bucket_spreads_requests() -> None:
    """60 a minute is one a second, without a burst beyond it."""
    bucket = TokenBucket(60, now=100.0)
    assert bucket.take(100.0) == 0.0
    assert bucket.take(100.0) == 1.0
    assert bucket.take(101.0) == 1.0, "the waiting request has used that second"
    assert bucket.take(200.0) == 0.0
    assert bucket.take(200.0) == 1.0, "an idle hour saves no burst"


def test_token_bucket_lets_a_fast_sink_have_its_second() -> None:
    bucket = TokenBucket(6_000, now=0.0)
    assert [bucket.take(0.0) for _ in range(100)] == [0.0] * 100
    assert bucket.take(0.0) == pytest.approx(0.01)


def test_token_bucket_without_bound() -> None:
    bucket = TokenBucket(None, now=0.0)
    assert [bucket.take(0.0) for _ in range(5)] == [0.0] * 5


@given(st.lists(st.floats(0, 30), max_size=60), st.integers(1, 600))
def test_token_bucket_never_exceeds_its_rate(pauses: list[float], per_minute: int) -> None:
    """Whatever the pauses between requests: sent by any moment is at most the rate and a burst."""
    bucket = TokenBucket(per_minute, now=0.0)
    now = 0.0
    for count, pause in enumerate(pauses):
        now += pause
        now += bucket.take(now)
        burst = max(per_minute / 60.0, 1.0)
        assert count + 1 <= now * per_minute / 60.0 + burst + 1e-6
