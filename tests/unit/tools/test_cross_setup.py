"""The set-up of emulators tries downloads twice, and names what it cannot install."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tools import cross_setup


class Machine:
    """A Debian where nothing is installed: ``fails`` commands in a row fail, apt knows all packages
    but ``unknown``."""

    def __init__(self, fails: int = 0, unknown: str = "") -> None:
        self.fails, self.unknown = fails, unknown
        self.commands: list[list[str]] = []

    def run(self, command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        if command[0] == "dpkg-query":
            return subprocess.CompletedProcess(command, 0, "ii  adduser\nrc  gcc\n")
        if command[0] == "apt-cache":
            known = "(none)" if command[-1] == self.unknown else "1.0"
            return subprocess.CompletedProcess(command, 0, f"  Candidate: {known}\n")
        self.commands.append(command)
        if self.fails:
            self.fails -= 1
            raise subprocess.CalledProcessError(100, command)
        return subprocess.CompletedProcess(command, 0, "")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine()
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: machine.run(*a, **k))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(cross_setup, "WAIT_SECONDS", 0)
    monkeypatch.setenv("DEBIAN_FRONTEND", "")
    return machine


def test_all_missing_packages_are_installed(machine: Machine) -> None:
    """A package whose configuration is left is not installed."""
    cross_setup.install_packages()
    update, install = machine.commands
    assert update[:2] == ["apt-get", "update"]
    assert set(install) >= set(cross_setup.PACKAGES)


def test_a_failed_download_is_tried_again(machine: Machine) -> None:
    machine.fails = 1
    cross_setup.install_packages()
    assert [command[1] for command in machine.commands] == ["update", "update", "install"]


def test_packages_may_be_installed_without_new_lists(machine: Machine) -> None:
    """Sources of others fail, too."""
    machine.fails = 2
    cross_setup.install_packages()
    assert [command[1] for command in machine.commands] == ["update", "update", "install"]


def test_a_download_that_fails_twice_is_an_error(machine: Machine) -> None:
    machine.fails = 4
    with pytest.raises(subprocess.CalledProcessError):
        cross_setup.install_packages()


def test_a_package_that_apt_lacks_is_named(machine: Machine) -> None:
    machine.unknown = "valgrind"
    with pytest.raises(SystemExit, match=r"apt has no package valgrind\. Remedy: use Debian 12"):
        cross_setup.install_packages()


def test_users_are_told_the_command_for_root(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(SystemExit, match=r"Remedy: as root, apt-get install .*qemu-user"):
        cross_setup.install_packages()
    assert not machine.commands


def test_another_system_is_told_the_packages(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(SystemExit, match=r"this is no Debian. Remedy: install .*qemu-user"):
        cross_setup.install_packages()


def test_a_userland_of_another_recipe_is_made_anew(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    recorded: list[Path] = []

    def make_userland(root: Path) -> None:
        (root / "usr" / "bin").mkdir(parents=True, exist_ok=True)
        recorded.append(root)

    monkeypatch.setenv("QUANTGLOW_CROSS_DIR", str(tmp_path))
    monkeypatch.setattr(cross_setup, "install_packages", lambda: None)
    monkeypatch.setattr(cross_setup, "make_userland", make_userland)
    cross_setup.main()
    cross_setup.main()
    assert len(recorded) == 1
    monkeypatch.setattr(cross_setup, "WHEELS", ("numpy",))
    cross_setup.main()
    assert len(recorded) == 2
