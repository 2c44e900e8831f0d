"""Sabotages of what bounds the work that one client can ask for."""

from __future__ import annotations

from tests.sabotage.plan import Sabotage

PATTERNS = "tests/broker/test_patterns.py"

OF_THE_BOUNDS = (
    Sabotage(
        name="rest-takes-no-words",
        why="a binding with a # before its end loses messages",
        path="broker/patterns.py",
        old="            state = (state & (one_words | by_word.get(word, 0))) << 1 | stay\n",
        new="            state = (state & (one_words | by_word.get(word, 0))) << 1\n",
        tests=(PATTERNS,),
    ),
    Sabotage(
        name="removed-pattern-matches",
        why="a queue gets messages after it was unbound",
        path="broker/patterns.py",
        old="            block.bits.remove(end)\n",
        new="",
        tests=(PATTERNS,),
    ),
    Sabotage(
        name="costly-patterns-in-the-trie",
        why="one publish stops all other clients for seconds",
        path="broker/patterns.py",
        old="        or pattern.count(ONE_WORD) > TRIE_ONE_WORDS_MAX\n",
        new="        or pattern.count(ONE_WORD) > TRIE_WORDS_MAX\n",
        tests=(PATTERNS, "tests/broker/test_routing.py"),
    ),
    Sabotage(
        name="headers-found-by-value-only",
        why="a headers binding that asks whether there is such a header is never found",
        path="broker/header_index.py",
        old="            for place in {_place(value), _VOID}:\n",
        new="            for place in {_place(value)}:\n",
        tests=("tests/broker/test_header_index.py",),
    ),
    Sabotage(
        name="cache-without-limit",
        why="each new topic name stays in memory for ever",
        path="broker/bounded_cache.py",
        old="        if key not in self and len(self) >= self.count_max:\n",
        new="        if key in self and len(self) >= self.count_max:\n",
        tests=("tests/broker/test_bounded_cache.py",),
    ),
    Sabotage(
        name="collector-runs-while-a-store-is-loaded",
        why="a third of a start with many queues is garbage collection",
        path="polymq/pauses.py",
        old="    gc.disable()\n",
        new="    gc.enable()\n",
        tests=("tests/polymq/test_pauses.py",),
    ),
    Sabotage(
        name="bodies-are-decompressed-without-end",
        why="a message of half a kilobyte takes all memory",
        path="remoting/compression.py",
        old="    plain = frame.decompress(body, max_length=PLAIN_BYTES_MAX)\n"
        "    return plain, frame.eof and not frame.unused_data\n\n\n_UNPACK",
        new="    plain = frame.decompress(body)\n"
        "    return plain, frame.eof and not frame.unused_data\n\n\n_UNPACK",
        tests=("tests/remoting/test_remoting_compression.py",),
    ),
    Sabotage(
        name="many-bodies-are-decompressed-at-once",
        why="a megabyte of messages stops the loop for seconds, and takes gigabytes",
        path="broker/plain.py",
        old="    while at < run.end and (len(records) < bytes_max or not count):\n",
        new="    while at < run.end:\n",
        tests=("tests/broker/test_compressed_bodies.py",),
    ),
    Sabotage(
        name="live-bodies-are-decompressed-at-once",
        why="a session at the tail has no bound on what is decompressed",
        path="broker/session.py",
        old="        if not run.meta.compressed and (backlog is None or not self._lags()):\n",
        new="        if backlog is None or not self._lags():\n",
        tests=("tests/broker/test_compressed_bodies.py",),
    ),
    Sabotage(
        name="a-stop-waits-for-retention",
        why="a server with many queues is killed by its supervisor instead of stopping",
        path="polymq/upkeep.py",
        old="        while not self._log_failed() and not self._leaving:\n",
        new="        while not self._log_failed():\n",
        tests=("tests/polymq/test_upkeep.py",),
    ),
    Sabotage(
        name="survivors-not-set-aside",
        why="pauses of the garbage collector grow with the number of queues",
        path="polymq/pauses.py",
        old="        gc.collect()\n        gc.freeze()\n\n    def _collect_fully",
        new="        gc.collect()\n\n    def _collect_fully",
        tests=("tests/polymq/test_pauses.py",),
    ),
    Sabotage(
        name="cancelled-hold-keeps-its-consumer",
        why="each consumer that ever was stays in memory",
        path="broker/queues/queue.py",
        old="            self.consumer = _GONE\n",
        new="",
        tests=("tests/gateways/amqp/test_amqp_freed.py",),
    ),
    Sabotage(
        name="subscriptions-setting-ignored",
        why="a bridge with more topic filters than the default is refused, whatever is configured",
        path="polymq/compose.py",
        old="EngineLimits(subscriptions_per_session_max=settings.mqtt.subscriptions_max)",
        new="EngineLimits()",
        tests=("interop_tests/test_limits_as_settings.py",),
    ),
    Sabotage(
        name="turn-without-end",
        why="a client that declares thousands of queues at once stops all others until it is done",
        path="gateways/amqp/client.py",
        pure=True,
        old="            if self._clock() >= until and not self._deaf:\n",
        new="            if self._clock() < 0 and not self._deaf:\n",
        tests=("tests/gateways/amqp/test_amqp_turns.py",),
    ),
    Sabotage(
        name="rest-over-the-read-buffer",
        why="what a client sent behind a large CONNECT overwrites memory when its login is done",
        path="net/kernels/pure.py",
        pure=True,
        old="        if end > BUFFER_BYTES // 2:  # of a read",
        new="        if end < 0:  # of a read",
        tests=("tests/net/test_net_kernels_alike.py",),
    ),
    Sabotage(
        name="walk-without-end",
        why="one publish visits every exchange of the broker while all others wait",
        path="broker/exchange_graph.py",
        old="            walk.walked += 1\n",
        new="",
        tests=("tests/broker/test_exchange_graph.py",),
    ),
)
