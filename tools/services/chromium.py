"""Chromium: the machine's browser, headless, with its driver, for tests of pages.

The driver speaks the W3C WebDriver protocol, JSON over HTTP. A dozen calls need no client library.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from streamlearn.errors import ServiceError
from tools.services.cache import Cache
from tools.services.ports import FindPorts, free_ports
from tools.services.service import Service, launch_on

__all__ = ["Browser", "Chromium", "ChromiumFiles", "chromium_version"]

_ARGUMENTS = (
    "--headless=new",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--no-first-run",
    "--disable-background-networking",
)
_PROBE_WAIT_S_MAX = 1.0
_ASK_WAIT_S_MAX = 60.0
_REPLY_BYTES_MAX = 64 << 20
# The field of the protocol that holds an element's id.
_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"


@dataclass(frozen=True)
class ChromiumFiles:
    """The programs `chromium` and `chromedriver`."""

    browser: Path
    driver: Path


class Chromium(Service):
    """A running driver, which opens browsers.

    Args:
        folder: A folder for profiles and the log.
        ports: One port.
        files: The programs.
    """

    name = "chromium"

    def __init__(self, folder: Path, ports: Sequence[int], files: ChromiumFiles) -> None:
        super().__init__(folder.absolute(), ports)
        self._files = files

    @classmethod
    def find(cls, cache: Cache) -> ChromiumFiles | None:
        """Return the programs on PATH, or None. They are never in the cache."""
        del cache
        browser, driver = shutil.which("chromium"), shutil.which("chromedriver")
        return ChromiumFiles(Path(browser), Path(driver)) if browser and driver else None

    @classmethod
    def fetch(cls, cache: Cache) -> ChromiumFiles:
        """Return the programs on PATH.

        Raises:
            ServiceError: One is missing.
        """
        files = cls.find(cache)
        if files is None:
            missing = "chromedriver" if shutil.which("chromium") else "chromium"
            message = f"no {missing} on PATH"
            raise ServiceError(message, help="install both (Debian: chromium chromium-driver), or run .ci/bootstrap")
        return files

    @classmethod
    def start(cls, folder: Path, *, cache: Cache | None = None, find_ports: FindPorts = free_ports) -> Self:
        """Start a driver and wait until it answers. `cache` is unused: all services start with the same arguments.

        Raises:
            ServiceError: A program is missing, or the driver does not start.
        """
        files = cls.fetch(cache or Cache())
        return launch_on(find_ports, 1, lambda ports: cls(folder, ports, files))

    @property
    def version(self) -> str:
        """The browser's version."""
        return chromium_version(self._files.browser)

    def open(self, *, width: int = 1280, height: int = 900, dark: bool = False) -> Browser:
        """Open a browser with a new profile. `dark` sets its preferred colour scheme.

        Raises:
            ServiceError: It does not open.
        """
        arguments = [*_ARGUMENTS, f"--window-size={width},{height}"]
        if os.geteuid() == 0:
            arguments.append("--no-sandbox")  # Chromium refuses to run as root with a sandbox
        if dark:
            arguments.append("--blink-settings=preferredColorScheme=0")
        options = {"binary": str(self._files.browser), "args": arguments}
        body = {
            "capabilities": {"alwaysMatch": {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}}
        }
        opened = _call(self.address, "POST", "session", body)
        return Browser(self.address, str(opened["sessionId"]))

    def _prepare(self) -> Sequence[str]:
        return [str(self._files.driver), f"--port={self.ports[0]}", "--allowed-ips=127.0.0.1"]

    def _answers(self, pid: int) -> bool:
        del pid  # the driver does not report its pid; a driver whose port is taken ends
        try:
            return bool(_call(self.address, "GET", "status", wait_s=_PROBE_WAIT_S_MAX)["ready"])
        except ServiceError:
            return False


class Browser:
    """An open browser; as a context manager it closes at the end.

    Args:
        address: The driver's address.
        session: The driver's id of the browser.
    """

    def __init__(self, address: str, session: str) -> None:
        self._address, self._session = address, session

    def visit(self, url: str) -> None:
        """Load a page."""
        self._ask("POST", "url", {"url": url})

    def run(self, script: str, *arguments: Any) -> Any:
        """Run the body of a function in the page and return its result."""
        return self._ask("POST", "execute/sync", {"script": script, "args": list(arguments)})

    def text(self, selector: str) -> str:
        """Return the visible text of the first element that matches; empty if none does."""
        text = self.run("return document.querySelector(arguments[0])?.innerText ?? ''", selector)
        return str(text)

    def click(self, selector: str) -> None:
        """Click on a visible element."""
        self._ask("POST", f"element/{self._element(selector)}/click", {})

    def type(self, selector: str, text: str) -> None:
        """Type into an element."""
        self._ask("POST", f"element/{self._element(selector)}/value", {"text": text})

    def resize(self, **frame: Any) -> None:
        """Change the size of the page, for example to that of a phone. The DevTools protocol defines the fields."""
        self._ask("POST", "goog/cdp/execute", {"cmd": "Emulation.setDeviceMetricsOverride", "params": frame})

    def logged(self) -> list[str]:
        """Return the messages of the page's console since the last call."""
        return [str(line["message"]) for line in self._ask("POST", "se/log", {"type": "browser"})]

    def screenshot(self) -> str:
        """Return the visible page, as a PNG in base64."""
        return str(self._ask("GET", "screenshot"))

    def close(self) -> None:
        """Close the browser."""
        _call(self._address, "DELETE", f"session/{self._session}")

    def _element(self, selector: str) -> str:
        element = self._ask("POST", "element", {"using": "css selector", "value": selector})
        return str(element[_ELEMENT])

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        return _call(self._address, method, f"session/{self._session}/{path}", body)

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def chromium_version(program: Path) -> str:
    """Return the version that a Chromium prints.

    Raises:
        ServiceError: It does not run, or prints no version.
    """
    try:
        answer = subprocess.run(
            [program, "--version"], capture_output=True, text=True, timeout=_ASK_WAIT_S_MAX, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        message = f"{program} does not run: {error}"
        raise ServiceError(message, help="install chromium again") from error
    version = re.search(r"(\d+(?:\.\d+)+)", answer.stdout)
    if version is None:
        message = f"{program} prints no version: {answer.stdout.strip()[:200]!r}"
        raise ServiceError(message, help="put a stock chromium first on PATH")
    return version[1]


def _call(
    address: str, method: str, path: str, body: dict[str, Any] | None = None, *, wait_s: float = _ASK_WAIT_S_MAX
) -> Any:
    """Call the driver and return the value of its reply.

    Raises:
        ServiceError: It did not answer, or the call failed.
    """
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"http://{address}/{path}", data, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=wait_s) as answer:
            return json.loads(answer.read(_REPLY_BYTES_MAX))["value"]
    except urllib.error.HTTPError as error:
        with error:
            reply = json.loads(error.read(_REPLY_BYTES_MAX)).get("value", {})
        message = f"chromedriver: {method} {path.rpartition('/')[2]}: {str(reply.get('message', error))[:500]}"
        raise ServiceError(message, help="see chromium.log in the folder of its profiles") from None
    except (OSError, ValueError) as error:
        message = f"chromedriver at {address} does not answer: {error}"
        raise ServiceError(message, help="see its log") from error
