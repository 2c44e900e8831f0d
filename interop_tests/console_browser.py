"""A console and a browser at it, for tests."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from interop_tests.conftest import Server
from interop_tests.people import PASSWORD

needs_chromium = pytest.mark.skipif(
    shutil.which("chromium") is None or shutil.which("chromedriver") is None,
    reason="needs Chromium and its driver (packages chromium and chromium-driver)",
)
SECONDS_MAX = 60.0
OPTIONS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1280,900",
)


def until(is_so: Callable[[], Any], what: str) -> Any:
    """Ask again and again, as a person looks again."""
    end = time.monotonic() + SECONDS_MAX
    while time.monotonic() < end:
        found = is_so()
        if found:
            return found
    raise AssertionError(f"it did not come: {what}")


class Browser:
    """A browser at a console."""

    def __init__(self, driver: Any, url: str) -> None:
        self.driver = driver
        self.url = url

    def open(self, path: str) -> None:
        self.driver.get(self.url + path)

    @property
    def text(self) -> str:
        shown: str = self.driver.execute_script("return document.body.innerText")
        return shown

    def sees(self, text: str) -> None:
        until(lambda: text in self.text, f"{text!r} in {self.text!r}")

    def click(self, label: str, last: bool = False) -> None:
        """A button by its text, or by its name for who cannot see it."""
        script = (
            "const all = [...document.querySelectorAll('button')].filter(b => "
            "b.innerText.trim().toLowerCase().endsWith(arguments[0].toLowerCase()) || "
            "b.getAttribute('aria-label') === arguments[0]);"
            "const b = arguments[1] ? all.at(-1) : all[0]; if (b) b.click(); return !!b;"
        )
        until(lambda: self.driver.execute_script(script, label, last), f"a button {label!r}")

    def fill(self, label: str, text: str) -> None:
        script = f'input[aria-label="{label}"]'
        (field,) = until(lambda: self.driver.find_elements("css selector", script), label)
        field.send_keys(text)

    def clear(self, label: str) -> None:
        script = f'input[aria-label="{label}"]'
        (field,) = until(lambda: self.driver.find_elements("css selector", script), label)
        field.send_keys("\ue009a\ue000\ue017")  # all of it, and the key Delete

    def is_enabled(self, label: str, last: bool = False) -> bool:
        """Of a button that is there."""
        found = [
            button
            for button in self.driver.find_elements("css selector", "button")
            if button.text.strip().lower().endswith(label.lower())
        ]
        return bool(found[-1 if last else 0].is_enabled())

    def severe(self) -> list[str]:
        """Errors of the browser."""
        log = self.driver.get_log("browser")
        return [line["message"] for line in log if line["level"] == "SEVERE"]

    def log_in(self, user: str, password: str = PASSWORD) -> None:
        self.fill("User", user)
        self.fill("Password", password)
        self.click("Log in")

    def has_button(self, label: str) -> bool:
        buttons = self.driver.find_elements("css selector", "button")
        return any(label.lower() in button.text.lower() for button in buttons)


@pytest.fixture
def console(server: Server, tmp_path: Path) -> Iterator[str]:
    """The console's URL."""
    ready = tmp_path / "console.json"
    url = f"http://127.0.0.1:{server.admin_port}"
    command = ["-m", "polymq", "console", "--url", url, "--port", "0", "--ready-file", str(ready)]
    with (tmp_path / "console.log").open("wb") as log:
        process = subprocess.Popen([sys.executable, *command], stderr=log, stdout=log)
    try:
        until(lambda: ready.exists() or process.poll() is not None, "the console")
        assert process.poll() is None, (tmp_path / "console.log").read_text()
        yield f"http://127.0.0.1:{json.loads(ready.read_text())['port']}"
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) in (0, -signal.SIGTERM)
        assert "Traceback" not in (tmp_path / "console.log").read_text()
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def browser(console: str) -> Iterator[Browser]:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    for option in OPTIONS:
        options.add_argument(option)
    options.binary_location = shutil.which("chromium") or ""
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    yield Browser(driver, console)
    driver.quit()
