"""Settings of all tests, and their browser."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings
from waiting import PATIENCE

if TYPE_CHECKING:
    from chat_server import ChatServer, Reply
    from playwright.sync_api import Browser, Page

# The time of an example depends on what else the machine does; no property is about speed.
settings.register_profile("full", deadline=None)
settings.register_profile("quick", deadline=None, max_examples=20)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "full"))

# Cached weights on the developer's machine must not affect which metrics are available.
os.environ["RADFACT_WEIGHTS"] = str(Path(__file__).parent / "no-weights")

_CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
_CHROMIUM_ARGUMENTS = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
_VARIABLES = ("PYTHONPATH", "OMP_NUM_THREADS")
_SERVERS = Path(__file__).parent / "servers"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of real model servers by their folder, and run files with slow tests first.

    The last files are then short, so that no process of a parallel run is left with a long one at the end.
    """
    for item in items:
        if item.path.is_relative_to(_SERVERS):
            item.add_marker(pytest.mark.server)
    slow = {item.path for item in items if item.get_closest_marker("slow") is not None}
    items.sort(key=lambda item: item.path not in slow)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the command that runs each failed test alone, with the variables that a phase of `make test` sets."""
    reports = [report for kind in ("failed", "error") for report in terminalreporter.getreports(kind)]
    failed = dict.fromkeys(report.nodeid for report in reports)
    if failed:
        terminalreporter.section("to repeat a failure alone")
    variables = [f"{name}={os.environ[name]}" for name in _VARIABLES if name in os.environ]
    for nodeid in failed:
        terminalreporter.write_line(shlex.join(["env", *variables, sys.executable, "-m", "pytest", "-n", "0", nodeid]))


@pytest.fixture
def run_program(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., tuple[int, str, str]]:
    """Run a program by its main function in an empty folder, without the judge and the key of the developer."""
    monkeypatch.delenv("RADFACT_JUDGE", raising=False)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)

    def run(name: str, main: Callable[[], None], *arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


@pytest.fixture
def serve() -> Iterator[Callable[..., ChatServer]]:
    """Start servers that respond with a function of (request, number of the request); close them at the end."""
    from chat_server import ChatServer

    servers: list[ChatServer] = []

    def start(reply: Callable[[dict[str, Any], int], Reply], port: int = 0) -> ChatServer:
        servers.append(ChatServer(reply, port))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium, which opens pages from disk; its event loop runs until the end of the module."""
    if _CHROMIUM is None:
        pytest.skip("chromium is not installed")
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=_CHROMIUM, args=_CHROMIUM_ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Open pages from disk, without a network, or of a server; whatever the browser complains of fails the test."""
    from results_folder import await_script

    complaints: list[str] = []
    contexts = []

    def opened(address: str, *, offline: bool = True) -> Page:
        contexts.append(browser.new_context(viewport={"width": 1400, "height": 900}, offline=offline))
        contexts[-1].set_default_timeout(PATIENCE * 1000)
        page = contexts[-1].new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(address)
        await_script(page)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert complaints == []
