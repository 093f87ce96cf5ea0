"""A browser that tests drive: Chromium by its driver, in the few words of the WebDriver protocol that they need."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.multiprocess.launching import free_port

KEYS = {"ArrowRight": "\ue014", "ArrowLeft": "\ue012", "PageDown": "\ue00f", "Home": "\ue011"}
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--window-size=1200,1400",
)


class Browser:
    """One window of a browser."""

    def __init__(self, port: int, profile: Path, dark: bool) -> None:
        self._root = f"http://127.0.0.1:{port}"
        flags = [*FLAGS, f"--user-data-dir={profile}", *(["--force-dark-mode"] if dark else [])]
        chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
        options: dict[str, object] = {"args": flags} | ({"binary": chromium} if chromium else {})
        asked = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        made = self._ask("POST", "/session", {"capabilities": {"alwaysMatch": asked}})
        assert isinstance(made, dict)
        self._session = f"/session/{made['sessionId']}"

    def open(self, page: Path) -> None:
        """Opens a page from its file."""
        self._ask("POST", f"{self._session}/url", {"url": page.resolve().as_uri()})

    def run(self, script: str) -> object:
        """What a script in the page gives."""
        return self._ask("POST", f"{self._session}/execute/sync", {"script": script, "args": []})

    def type(self, where: str, keys: str) -> None:
        """Types into what a selector finds."""
        found = self._ask("POST", f"{self._session}/element", {"using": "css selector", "value": where})
        assert isinstance(found, dict)
        (element,) = found.values()
        self._ask("POST", f"{self._session}/element/{element}/value", {"text": keys})

    def errors(self) -> list[str]:
        """What the page complained of."""
        entries = self._ask("POST", f"{self._session}/se/log", {"type": "browser"})
        assert isinstance(entries, list)
        return [entry["message"] for entry in entries if entry["level"] in ("SEVERE", "WARNING")]

    def close(self) -> None:
        """Closes the window."""
        self._ask("DELETE", self._session)

    def _ask(self, method: str, path: str, body: object = None) -> object:
        data = None if method == "DELETE" else json.dumps(body or {}).encode()
        request = urllib.request.Request(self._root + path, data, {"Content-Type": "application/json"}, method=method)
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as answer:
            return json.loads(answer.read())["value"]


@contextmanager
def browser(folder: Path, *, dark: bool = False) -> Iterator[Browser]:
    """A browser with a fresh profile, and its end."""
    port = free_port()
    driver = subprocess.Popen(["chromedriver", f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(100):
            try:
                opened = Browser(port, folder / "profile", dark)
                break
            except ConnectionRefusedError:
                time.sleep(0.1)
            except urllib.error.URLError as error:
                if isinstance(error, urllib.error.HTTPError):
                    raise
                time.sleep(0.1)
        else:
            raise TimeoutError("chromedriver does not answer")
        try:
            yield opened
        finally:
            opened.close()
    finally:
        driver.terminate()
        driver.wait(20)
