"""Sabotages of what operators see of MQTT, and of what keeps clients out."""

from __future__ import annotations

from tests.sabotage.plan import Sabotage

BANS = "tests/broker/test_bans.py"
CONNECTIONS = "tests/broker/test_connections.py"
SESSIONS = "tests/polymq/admin/test_mqtt_sessions.py"
PAGES = "tests/polymq/admin/test_pages.py"
RIGHTS = "interop_tests/test_api_rights.py"
REMOTE = "interop_tests/test_api_remote.py"
OPENAPI = "tests/polymq/admin/test_openapi.py"
OVERVIEW = "tests/polymq/admin/test_overview.py"
LINES = "tests/gateways/mqtt/test_packet_lines.py"
TABLE = "tests/broker/test_client_table.py"
QUEUES = "tests/polymq/admin/test_queues.py"
MESSAGES_TRACED = "tests/polymq/admin/test_message_trace.py"

OF_THE_OPERATORS = (
    Sabotage(
        name="a-list-of-queues-has-the-last-ones-only",
        why="an operator does not see the queue that grows",
        path="polymq/admin/pages.py",
        old="            best = sorted(best + found, key=",
        new="            best = sorted(found or best, key=",
        tests=(PAGES, QUEUES),
    ),
    Sabotage(
        name="equal-numbers-behind-the-bound-are-left-out",
        why="a page of queues of which nearly all are idle ends too early",
        path="polymq/admin/pages.py",
        old="number > least or (name < last and number == least))",
        new="number > least)",
        tests=(PAGES,),
    ),
    Sabotage(
        name="equal-numbers-come-again",
        why="the next page shows idle queues that were on the one before",
        path="polymq/admin/pages.py",
        old="number < most or (name > first and number == most))",
        new="number <= most)",
        tests=(PAGES,),
    ),
    Sabotage(
        name="what-was-given-back-does-not-wait",
        why="the oldest message of a queue looks newer than it is",
        path="broker/queues/inspection.py",
        old="    stretches = list(cursor.requeued())\n",
        new="    stretches = []\n",
        tests=(QUEUES,),
    ),
    Sabotage(
        name="bans-are-not-saved",
        why="who was banned comes back after a restart that finds state.db",
        path="broker/accounts/bans.py",
        old="        return None if ban is None else _row(ban)\n",
        new="        return None\n",
        tests=(BANS,),
    ),
    Sabotage(
        name="bans-end-never",
        why="a client that was banned for an hour is kept out for ever",
        path="broker/accounts/bans.py",
        old="        return ban.until_ms is None or ban.until_ms > self._core.clock_ms()\n",
        new="        return True\n",
        tests=(BANS,),
    ),
    Sabotage(
        name="banned-networks-by-their-first-address",
        why="the other addresses of a banned network connect",
        path="broker/accounts/bans.py",
        old="                ban = networks.get(number >> found.max_prefixlen - length)\n",
        new="                ban = networks.get(number)\n",
        tests=(BANS,),
    ),
    Sabotage(
        name="banned-users-stay-connected",
        why="a ban is without effect until the user connects anew",
        path="broker/admission/admission.py",
        old='                    inside.expelled("the user was banned")\n',
        new="                    pass\n",
        tests=(BANS,),
    ),
    Sabotage(
        name="refused-connections-count-against-the-rate",
        why="a flood of one address uses up the rate of all others",
        path="broker/admission/connections.py",
        old="        if own is not None and not own.has_one(now):\n",
        new="        if self._bucket is not None:\n"
        "            self._bucket.take_one()\n"
        "        if own is not None and not own.has_one(now):\n",
        tests=(CONNECTIONS,),
    ),
    Sabotage(
        name="taken-over-clients-vanish-from-the-list",
        why="an operator does not see a client that is connected",
        path="broker/admission/connections.py",
        old="            if self.clients.get(client.client_id) is client:",
        new="            if client.client_id in self.clients:",
        tests=(CONNECTIONS,),
    ),
    Sabotage(
        name="pages-from-the-first-session-on",
        why="each page is the first one: an operator sees a hundred sessions of ten thousand",
        path="broker/sessions/client_table.py",
        old="        for client_id in self._names.below(prefix, behind):\n",
        new="        for client_id in self._names.below(prefix):\n",
        tests=(SESSIONS, TABLE),
    ),
    Sabotage(
        name="traced-payloads-uncut",
        why="a trace shows what is in messages, as much as there is",
        path="gateways/mqtt/packet_lines.py",
        old="            payload = body.rest()[: self._payload_max]\n",
        new="            payload = body.rest()\n",
        tests=(LINES,),
    ),
    Sabotage(
        name="message-trace-never-ends",
        why="every batch is looked at for ever after the first trace",
        path="polymq/admin/message_trace.py",
        old="        self._unwatch()\n        self._unwatch = None\n",
        new="        self._unwatch = None\n",
        tests=(MESSAGES_TRACED,),
    ),
    Sabotage(
        name="message-trace-without-a-rate",
        why="a trace of a busy topic takes the loop from its clients",
        path="polymq/admin/message_trace.py",
        old="        if self._lines_left <= 0:\n",
        new="        if False:\n",
        tests=(MESSAGES_TRACED,),
    ),
    Sabotage(
        name="message-trace-of-whole-batches",
        why="a batch of ten thousand messages holds the loop up while a trace runs",
        path="polymq/admin/message_trace.py",
        old="        looks = min(count, AT_ONCE, self._looks_left)\n",
        new="        looks = min(count, self._looks_left)\n",
        tests=(MESSAGES_TRACED,),
    ),
    Sabotage(
        name="links-left-watched",
        why="each trace puts one more object before every client",
        path="polymq/admin/message_trace.py",
        old="                session.link = link.inner\n",
        new="                pass\n",
        tests=(MESSAGES_TRACED,),
    ),
    Sabotage(
        name="delivery-flag-that-falls",
        why="a trace sees the first batch of each second only",
        path="broker/pacing/latencies.py",
        old="        self.due = bool(self._watches)\n",
        new="        self.due = False\n",
        tests=(MESSAGES_TRACED,),
    ),
    Sabotage(
        name="traces-begin-within-a-packet",
        why="a trace that begins while a packet comes shows nonsense from then on",
        path="gateways/mqtt/tracing.py",
        old="buffer[start if has_seen else 0 : end]",
        new="buffer[start:end]",
        tests=(LINES,),
    ),
    Sabotage(
        name="a-right-that-is-not-asked-for",
        why="whoever logs in deletes queues and users",
        path="polymq/admin/api.py",
        old="    handle.right = endpoint.right  # type: ignore[attr-defined]\n",
        new="",
        tests=(RIGHTS,),
    ),
    Sabotage(
        name="a-reader-bans",
        why="who may look only keeps out clients",
        path="polymq/admin/bans.py",
        old='                    summary="Ban a client identifier, a user or an address",\n'
        '                    about="Its connections end. A ban that exists is replaced.",\n'
        '                    right="operate",\n',
        new='                    summary="Ban a client identifier, a user or an address",\n'
        '                    about="Its connections end. A ban that exists is replaced.",\n'
        '                    right="monitor",\n',
        tests=(OPENAPI,),
    ),
    Sabotage(
        name="payloads-for-operators",
        why="an operator reads messages of topics that it may not subscribe to",
        path="polymq/admin/trace.py",
        old="            call.port.principal.check_read((REST,))\n",
        new="            pass\n",
        tests=(RIGHTS,),
    ),
    Sabotage(
        name="retained-messages-for-operators",
        why="an operator reads retained messages that it may not subscribe to",
        path="polymq/admin/mqtt_retained.py",
        old='        call.port.principal.check_read(self._names.address(call.path["topic"]))\n',
        new="",
        tests=(RIGHTS,),
    ),
    Sabotage(
        name="banned-addresses-at-the-api",
        why="a banned address goes on guessing passwords at the listener for other machines",
        path="polymq/admin/server.py",
        old="app, host, port, tls, sockets, accepts=self._accepts)",
        new="app, host, port, tls, sockets)",
        tests=(REMOTE,),
    ),
    Sabotage(
        name="bans-lock-operators-out",
        why="who bans 127.0.0.0/8 cannot undo it on the machine itself",
        path="polymq/admin/server.py",
        old="app, ADMIN_HOST, port, sockets=sockets)",
        new="app, ADMIN_HOST, port, sockets=sockets, accepts=self._accepts)",
        tests=(REMOTE,),
    ),
    Sabotage(
        name="the-api-without-users",
        why="a server without users obeys everybody who reaches its port",
        path="polymq/admin/access.py",
        old="(is_local and not self._admission.users.closed)",
        new="(not self._admission.users.closed)",
        tests=(REMOTE,),
    ),
    Sabotage(
        name="ended-bans-are-listed",
        why="an operator sees bans that are not in force",
        path="polymq/admin/bans.py",
        old="            wants=lambda _: True,  # `find` leaves out those that have ended\n",
        new="",
        tests=(OVERVIEW,),
    ),
    Sabotage(
        name="forms-of-other-pages",
        why="a web page that an operator opens clears retained messages",
        path="polymq/admin/server.py",
        old='        and request.content_type != "application/json"\n',
        new="        and request.content_type not in "
        '("application/json", "application/x-www-form-urlencoded")\n',
        tests=("interop_tests/test_program_admin.py",),
    ),
    Sabotage(
        name="slowed-logins-are-conflicts",
        why="a tool takes a login that was not checked for one that is wrong for ever",
        path="polymq/admin/access.py",
        old="        if principal.reason is Reason.LIMIT:  # the same",
        new="        if principal.reason is Reason.RATE:  # the same",
        tests=("interop_tests/test_login_throttling.py",),
    ),
    Sabotage(
        name="the-token-of-before-the-restart",
        why="a command that watches a server is refused for ever after a restart",
        path="polymq/commands/watching.py",
        old="        if not admin.find_again():\n",
        new="        if admin or not admin.find_again():\n",
        tests=("interop_tests/test_program_watching.py",),
    ),
    Sabotage(
        name="a-full-output-is-a-bug",
        why="a script that exports to a full disk ends with a traceback",
        path="polymq/program.py",
        old="        if error.errno in _NO_ROOM and error.filename is None:",
        new="        if error.errno in _NO_ROOM and error.filename is not None:",
        tests=("interop_tests/test_program_commands.py",),
    ),
    Sabotage(
        name="names-with-braces-are-out-of-reach",
        why="a client whose name has a brace cannot be kicked, and its ban stays",
        path="polymq/admin/api.py",
        old="API_PATH + any_names(operation.path)",
        new="API_PATH + operation.path",
        tests=("interop_tests/test_api_rights.py::test_names_may_have_any_character",),
    ),
    Sabotage(
        name="one-address-has-all-of-the-listener",
        why="a reader keeps out all operators of other machines",
        path="polymq/admin/web_listener.py",
        old="            if self._count_of(address) >= PER_ADDRESS_MAX:\n",
        new="            if False:\n",
        tests=("interop_tests/test_api_remote.py::test_who_fills_the_port_keeps_out_nobody_else",),
    ),
    Sabotage(
        name="a-removed-ballast-stays-away",
        why="a full disk has no room to save, though the server says so",
        path="core_log/ballast.py",
        old="        if self.held_bytes > 0 and BALLAST_NAME not in",
        new="        if False and BALLAST_NAME not in",
        tests=("tests/core_log/test_ballast.py",),
    ),
)
