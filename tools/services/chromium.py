"""Chromium: the machine's own browser without a window, driven by its own driver; what pages are tried in.

The driver speaks the W3C's WebDriver protocol, JSON over HTTP: a client of it is a dozen calls, and no library.
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
# The protocol's own name for the field that names an element.
_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"


@dataclass(frozen=True)
class ChromiumFiles:
    """The two programs.

    Attributes:
        browser: Chromium.
        driver: What drives it.
    """

    browser: Path
    driver: Path


class Chromium(Service):
    """A running driver, which opens browsers.

    Args:
        folder: Profiles of browsers and the log.
        ports: One port.
        files: The programs to run.
    """

    name = "chromium"
    ready_wait_s_max = 60.0

    def __init__(self, folder: Path, ports: Sequence[int], files: ChromiumFiles) -> None:
        super().__init__(folder.absolute(), ports)
        self._files = files

    @classmethod
    def find(cls, cache: Cache) -> ChromiumFiles | None:
        """The programs on PATH, or None; nothing of them is ever in the cache."""
        del cache
        browser, driver = shutil.which("chromium"), shutil.which("chromedriver")
        return ChromiumFiles(Path(browser), Path(driver)) if browser and driver else None

    @classmethod
    def fetch(cls, cache: Cache) -> ChromiumFiles:
        """The programs on PATH.

        Raises:
            ServiceError: One is missing.
        """
        found = cls.find(cache)
        if found is None:
            missing = "chromedriver" if shutil.which("chromium") else "chromium"
            message = f"no {missing} on PATH"
            raise ServiceError(message, help="install both (Debian: chromium chromium-driver), or run .ci/bootstrap")
        return found

    @classmethod
    def start(cls, folder: Path, *, cache: Cache | None = None, find_ports: FindPorts = free_ports) -> Self:
        """Start a driver and wait until it answers.

        Args:
            folder: Where profiles and the log are.
            cache: Not used; every service starts with the same arguments.
            find_ports: Where its port comes from.

        Raises:
            ServiceError: It could not be had or did not start.
        """
        files = cls.fetch(cache or Cache())
        return launch_on(find_ports, 1, lambda ports: cls(folder, ports, files))

    @property
    def version(self) -> str:
        """The browser's own version."""
        return chromium_version(self._files.browser)

    def open(self, *, width: int = 1280, height: int = 900, dark: bool = False) -> Browser:
        """Open a browser, with a profile of its own.

        Args:
            width: Of its window.
            height: Of its window.
            dark: Whether people who use it like it dark.

        Raises:
            ServiceError: It does not open.
        """
        arguments = [*_ARGUMENTS, f"--window-size={width},{height}"]
        if os.geteuid() == 0:
            arguments.append("--no-sandbox")  # it refuses to run as root with one
        if dark:
            arguments.append("--blink-settings=preferredColorScheme=0")
        options = {"binary": str(self._files.browser), "args": arguments}
        asked = {
            "capabilities": {"alwaysMatch": {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}}
        }
        opened = _call(self.address, "POST", "session", asked)
        return Browser(self.address, str(opened["sessionId"]))

    def _prepare(self) -> Sequence[str]:
        return [str(self._files.driver), f"--port={self.ports[0]}", "--allowed-ips=127.0.0.1"]

    def _answers(self, pid: int) -> bool:
        del pid  # it does not say its own; one that finds its port taken ends
        try:
            return bool(_call(self.address, "GET", "status", wait_s=_PROBE_WAIT_S_MAX)["ready"])
        except ServiceError:
            return False


class Browser:
    """A browser that is open; as a context manager it is closed at the end.

    Args:
        address: The driver's.
        session: What the driver calls it.
    """

    def __init__(self, address: str, session: str) -> None:
        self._address, self._session = address, session

    def visit(self, url: str) -> None:
        """Load a page."""
        self._ask("POST", "url", {"url": url})

    def run(self, script: str, *arguments: Any) -> Any:
        """What a function's body, run in the page, returns."""
        return self._ask("POST", "execute/sync", {"script": script, "args": list(arguments)})

    def text(self, selector: str) -> str:
        """The text that people see in the first element a selector finds; nothing where it finds none."""
        found = self.run("return document.querySelector(arguments[0])?.innerText ?? ''", selector)
        return str(found)

    def click(self, selector: str) -> None:
        """Click on an element, where it can be seen."""
        self._ask("POST", f"element/{self._element(selector)}/click", {})

    def type(self, selector: str, text: str) -> None:
        """Type into an element."""
        self._ask("POST", f"element/{self._element(selector)}/value", {"text": text})

    def resize(self, **frame: Any) -> None:
        """Let the page have another size, down to a telephone's; see the DevTools protocol for the fields."""
        self._ask("POST", "goog/cdp/execute", {"cmd": "Emulation.setDeviceMetricsOverride", "params": frame})

    def logged(self) -> list[str]:
        """What the page's console has said since it was last asked."""
        return [str(line["message"]) for line in self._ask("POST", "se/log", {"type": "browser"})]

    def screenshot(self) -> str:
        """What is seen, as a PNG in base 64."""
        return str(self._ask("GET", "screenshot"))

    def close(self) -> None:
        """Close it."""
        _call(self._address, "DELETE", f"session/{self._session}")

    def _element(self, selector: str) -> str:
        found = self._ask("POST", "element", {"using": "css selector", "value": selector})
        return str(found[_ELEMENT])

    def _ask(self, method: str, what: str, asked: dict[str, Any] | None = None) -> Any:
        return _call(self._address, method, f"session/{self._session}/{what}", asked)

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *ended: object) -> None:
        self.close()


def chromium_version(program: Path) -> str:
    """The version a Chromium states.

    Raises:
        ServiceError: It does not run, or states none.
    """
    try:
        answer = subprocess.run(
            [program, "--version"], capture_output=True, text=True, timeout=_ASK_WAIT_S_MAX, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        message = f"{program} does not run: {error}"
        raise ServiceError(message, help="install chromium again") from error
    stated = re.search(r"(\d+(?:\.\d+)+)", answer.stdout)
    if stated is None:
        message = f"{program} states no version: {answer.stdout.strip()[:200]!r}"
        raise ServiceError(message, help="put a stock chromium first on PATH")
    return stated[1]


def _call(
    address: str, method: str, what: str, asked: dict[str, Any] | None = None, *, wait_s: float = _ASK_WAIT_S_MAX
) -> Any:
    """One call of the driver; what it gives, whatever that is.

    Raises:
        ServiceError: It did not answer, or what was asked for failed.
    """
    data = None if asked is None else json.dumps(asked).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"http://{address}/{what}", data, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=wait_s) as answer:
            return json.loads(answer.read(_REPLY_BYTES_MAX))["value"]
    except urllib.error.HTTPError as error:
        with error:
            told = json.loads(error.read(_REPLY_BYTES_MAX)).get("value", {})
        message = f"chromedriver: {method} {what.rpartition('/')[2]}: {str(told.get('message', error))[:500]}"
        raise ServiceError(message, help="its log is beside its profiles") from None
    except (OSError, ValueError) as error:
        message = f"chromedriver at {address} does not answer: {error}"
        raise ServiceError(message, help="see its log") from error
