"""Sabotages of metrics, of what they cost, and of who may read them."""

from __future__ import annotations

from tests.sabotage.plan import Sabotage

READERS = "tests/polymq/metrics/test_readers.py"
TOPICS = "tests/polymq/metrics/test_topics.py"
EXPOSITION = "tests/polymq/metrics/test_exposition.py"
HEALTH = "tests/polymq/admin/test_health.py"
LATENCIES = "tests/broker/test_latencies.py"
LISTENER = "interop_tests/test_monitoring.py"

OF_THE_METRICS = (
    Sabotage(
        name="a-scrape-in-one-step",
        why="a monitor stops a server with very many queues, again and again",
        path="polymq/metrics/readers.py",
        old="self._readers.walk(step=AT_ONCE):",
        new="self._readers.walk():",
        tests=(READERS,),
    ),
    Sabotage(
        name="topics-in-one-step",
        why="a monitor stops a server with very many topics, again and again",
        path="polymq/metrics/topics.py",
        old="            if at % AT_ONCE == 0:\n                yield\n",
        new="            if at < 0:\n                yield\n",
        tests=(TOPICS,),
    ),
    Sabotage(
        name="each-monitor-has-its-own-answer",
        why="ten monitors cost ten times as much",
        path="polymq/metrics/exposition.py",
        old="        task = self._under_way\n        if task is None:\n",
        new="        task = self._under_way\n        if task is None or task:\n",
        tests=(EXPOSITION,),
    ),
    Sabotage(
        name="a-monitor-that-goes-takes-the-answer",
        why="a monitor whose time is up leaves the others without metrics",
        path="polymq/metrics/exposition.py",
        old="        return await asyncio.shield(task)  # a monitor that goes",
        new="        return await task  # a monitor that goes",
        tests=(EXPOSITION,),
    ),
    Sabotage(
        name="a-scrape-reads-all-that-is-on-the-disk",
        why="a scrape of very many old queues takes the readers from the clients",
        path="polymq/metrics/readers.py",
        old="            if not self._reads_left:\n",
        new="            if self._reads_left < -1_000_000:\n",
        tests=(READERS,),
    ),
    Sabotage(
        name="what-was-read-is-read-again",
        why="each scrape reads the heads of all idle queues",
        path="polymq/metrics/readers.py",
        old="            known = self._known.get(key)\n",
        new="            known = None\n",
        tests=(READERS,),
    ),
    Sabotage(
        name="the-smallest-have-series",
        why="the queue that grows is not among those that are shown",
        path="polymq/metrics/readers.py",
        old="        elif entry > largest[0]:\n",
        new="        elif entry < largest[0]:\n",
        tests=(READERS,),
    ),
    Sabotage(
        name="the-oldest-message-is-the-newest",
        why="a reader that has been stuck for days looks fine beside another one",
        path="polymq/metrics/readers.py",
        old="    return min(one, other) if one and other else one or other\n",
        new="    return max(one, other)\n",
        tests=(READERS,),
    ),
    Sabotage(
        name="shares-count-for-each-member",
        why="what waits for a shared subscription is counted as often as it has members",
        path="polymq/readers.py",
        old="    return subscription.durable and not subscription.is_shared\n",
        new="    return subscription.durable\n",
        tests=(READERS,),
    ),
    Sabotage(
        name="a-batch-counts-once",
        why="the latency of a message among a thousand counts as much as that of one alone",
        path="core_log/durations.py",
        old="        self.counts[bisect_left(self.bounds, seconds)] += weight\n",
        new="        self.counts[bisect_left(self.bounds, seconds)] += 1\n",
        tests=(LATENCIES,),
    ),
    Sabotage(
        name="all-deliveries-are-measured",
        why="each batch pays for the metrics",
        path="broker/pacing/latencies.py",
        old="        self.due = False\n        stored_ms",
        new="        stored_ms",
        tests=(LATENCIES,),
    ),
    Sabotage(
        name="messages-forgotten-while-the-disk-is-stuck",
        why="those that wait longest are missing in the histogram",
        path="broker/pacing/latencies.py",
        old="            self._pending[-1] = (position, at, before + count)\n",
        new="            self._pending[-1] = (position, at, before)\n",
        tests=(LATENCIES,),
    ),
    Sabotage(
        name="ready-before-it-has-started",
        why="Kubernetes sends clients to a server that does not listen yet",
        path="polymq/admin/health.py",
        old="        return self.why_not_started() or self._refusal()\n",
        new="        return self._refusal()\n",
        tests=(HEALTH,),
    ),
    Sabotage(
        name="dead-while-it-stops",
        why="Kubernetes kills a server that lets its clients finish",
        path="polymq/admin/health.py",
        old='        return _answer("")\n',
        new="        return _answer(self._refusal())\n",
        tests=(HEALTH,),
    ),
    Sabotage(
        name="metrics-without-the-login",
        why="any machine reads the names of queues, though the operator wanted a login",
        path="polymq/admin/monitoring.py",
        old="            await self._check(request)\n",
        new="            pass\n",
        tests=(LISTENER,),
    ),
    Sabotage(
        name="a-login-for-nobody",
        why="while there are no users, any password opens the metrics",
        path="polymq/admin/monitoring.py",
        old="        if not self._users.closed:\n",
        new="        if self._users is None:\n",
        tests=(LISTENER,),
    ),
)
