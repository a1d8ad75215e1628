"""How `tools/browser.py` comes by a Chromium, with shell scripts in the place of real programs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tools import browser


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder that is all of the PATH, on a machine of root's."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return tmp_path


def add(machine: Path, name: str, script: str = "") -> None:
    (machine / name).write_text(f"#!/bin/sh\n{script}\n")
    (machine / name).chmod(0o755)


def test_one_that_is_there_is_taken(machine: Path) -> None:
    add(machine, "chromium-browser")
    add(machine, "apt-get", "exit 1")
    assert browser.ensure() == f"the live page is tested with {machine / 'chromium-browser'}"


def test_root_installs_one(machine: Path) -> None:
    script = f'echo "$@" >> {machine}/asked; echo > {machine}/chromium; /bin/chmod +x {machine}/*'
    add(machine, "apt-get", script)
    assert browser.ensure() == f"the live page is tested with {machine / 'chromium'}"
    update, install = (machine / "asked").read_text().splitlines()
    assert update.endswith(" update")
    assert install.endswith(" install --yes --no-install-recommends chromium")


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo no network; exit 100", "apt-get failed: no network"),
        ("exec /bin/sleep 60", "apt-get took more than"),
        ("", "the package chromium brought none of chromium and chromium-browser"),
    ],
)
def test_without_one_the_reason_is_said(
    machine: Path, monkeypatch: pytest.MonkeyPatch, script: str, reason: str
) -> None:
    monkeypatch.setattr(browser, "LIMIT", 1.0)
    add(machine, "apt-get", script)
    found = browser.ensure()
    assert found.startswith("the tests of the live page are skipped, for want of a Chromium: ")
    assert reason in found


def test_others_than_root_are_told_what_to_install(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    add(machine, "apt-get", "exit 1")
    assert "install chromium, or run this as root on Debian" in browser.ensure()
