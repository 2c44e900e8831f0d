"""MQTT.js, as pages have it, in headless Chromium: a page of an allowed origin talks to the server,
with MQTT 3.1.1 and 5, and one of another origin does not get in."""

from __future__ import annotations

import http.server
import json
import queue
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from interop_tests.conftest import StartServer
from interop_tests.node import need_packages
from interop_tests.test_tls import TLS, ports_of

pytestmark = pytest.mark.slow(seconds=8)

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
REPORT_SECONDS_MAX = 60.0
PAGE = """<!doctype html><title>MQTT</title><script src="/mqtt.js"></script><script>
const asked = new URLSearchParams(location.search);
const protocolVersion = Number(asked.get('version'));
const report = { got: [], errors: [] };
const end = () => fetch('/', { method: 'POST', body: JSON.stringify(report) });
(async () => {
  const client = mqtt.connect(asked.get('url'), {
    protocolVersion, clientId: `page-${protocolVersion}`, reconnectPeriod: 0, connectTimeout: 9000,
  });
  client.on('error', error => report.errors.push(String(error.message || error.type || error)));
  client.on('close', () => { if (!client.done) { report.closed = true; end(); } });
  client.on('message', (topic, body, { qos, retain, properties }) => {
    const user = properties?.userProperties ?? {};
    report.got.push([topic, body.length, body[body.length - 1], qos, retain, { ...user }]);
    if (report.got.length === 5) { client.done = true; client.end(false, {}, end); }
  });
  await new Promise(resolve => client.on('connect', resolve));
  const more = protocolVersion === 5 ? { properties: { userProperties: { from: 'page' } } } : {};
  await client.publishAsync('page/kept', new Uint8Array([5, 6, 7]), { qos: 1, retain: true });
  await client.subscribeAsync('page/#', { qos: 2 });
  for (const qos of [0, 1, 2]) await client.publishAsync(`page/${qos}`, 'text', { qos, ...more });
  await client.publishAsync('page/large', 'x'.repeat(300000), { qos: 1, ...more });
})().catch(error => { report.errors.push(String(error)); end(); });
</script>"""


class Pages(http.server.BaseHTTPRequestHandler):
    """Serves the page and its script, and takes what it reports."""

    def __init__(self, script: bytes, reports: queue.Queue[dict[str, Any]], *args: Any) -> None:
        self.script = script
        self.reports = reports
        super().__init__(*args)

    def do_GET(self) -> None:
        is_script = urlsplit(self.path).path == "/mqtt.js"
        self.send_response(200)
        self.send_header("content-type", "text/javascript" if is_script else "text/html")
        self.end_headers()
        self.wfile.write(self.script if is_script else PAGE.encode())

    def do_POST(self) -> None:
        self.reports.put(json.loads(self.rfile.read(int(self.headers["content-length"]))))
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Nobody reads it."""


class Site:
    """An origin: a web server with the page."""

    def __init__(self, server: http.server.ThreadingHTTPServer, reports: queue.Queue[Any]) -> None:
        self.origin = f"http://127.0.0.1:{server.server_port}"
        self._reports = reports

    def visit(self, profile: Path, url: str, version: int) -> dict[str, Any]:
        """What the page reports that connects to this URL."""
        browser = next((found for name in BROWSERS if (found := shutil.which(name))), None)
        if browser is None:
            pytest.skip("there is no Chromium on this machine")
        options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}"]
        options.append("--ignore-certificate-errors")  # it does not know the tests' authority
        page = f"{self.origin}/?version={version}&url={url}"
        process = subprocess.Popen([browser, *options, page], stderr=subprocess.DEVNULL)
        try:
            report: dict[str, Any] = self._reports.get(timeout=REPORT_SECONDS_MAX)
            report["got"].sort()  # what is retained may come between what is live
        finally:
            process.kill()
            process.wait()
        return report


@contextmanager
def site() -> Iterator[Site]:
    script = need_packages("mqtt_js") / "node_modules" / "mqtt" / "dist" / "mqtt.min.js"
    reports: queue.Queue[dict[str, Any]] = queue.Queue()
    handler = partial(Pages, script.read_bytes(), reports)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield Site(server, reports)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_pages_talk_and_those_of_another_origin_do_not(
    start_server: StartServer, tmp_path: Path
) -> None:
    """Over WebSocket with and without TLS."""
    with site() as ours, site() as theirs:
        origins = {"mqtt.websocket_origins": json.dumps([ours.origin])}
        ports = {"mqtt.websocket": True, "mqtt.websocket_port": 0, "mqtt.websocket_tls_port": 0}
        listening = ports_of(start_server(**TLS, **ports, **origins))
        plain = f"ws://127.0.0.1:{listening['mqtt_ws']}/mqtt"
        for version, url in ((4, plain), (5, f"wss://localhost:{listening['mqtt_wss']}/mqtt")):
            user = {"from": "page"} if version == 5 else {}
            assert ours.visit(tmp_path / "ours", url, version) == {
                "got": [
                    ["page/0", 4, ord("t"), 0, False, user],
                    ["page/1", 4, ord("t"), 1, False, user],
                    ["page/2", 4, ord("t"), 2, False, user],
                    ["page/kept", 3, 7, 1, True, {}],
                    ["page/large", 300_000, ord("x"), 1, False, user],
                ],
                "errors": [],
            }
        report = theirs.visit(tmp_path / "theirs", plain, 4)
        assert (report["got"], report["closed"]) == ([], True)
