"""The options of the provider: texts, whose errors name the option and what it may be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from quantglow.codegen.llvm import cache
from quantglow.codegen.llvm.cache import cache_folder, choose_folder
from quantglow.ep.options import ProviderOptions
from quantglow.support.errors import OptionError
from tests.support.plug_in import session
from tests.unit.ep.test_threads import network

WRONG = {
    "threads=2": r"no option 'threads'. Remedy: .*folder, num_threads, shapes, while_compiling",
    "num_threads=x": "num_threads='x' .* Remedy: give one from 1",
    "num_threads=0": "num_threads='0' .* Remedy: give one from 1",
    "while_compiling=go on": "while_compiling='go on' .* Remedy: say wait or onnxruntime",
}


@pytest.fixture(autouse=True)
def nothing_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_chosen", [])


@pytest.mark.parametrize("line", WRONG)
def test_an_error_names_the_option_and_its_values(line: str) -> None:
    with pytest.raises(OptionError, match=WRONG[line]):
        ProviderOptions.of(line + "\n")


def test_options_are_read_from_lines() -> None:
    options = ProviderOptions.of("num_threads=3\nwhile_compiling=onnxruntime\ncache_folder=a=b\n")
    assert options == ProviderOptions(3, "onnxruntime", "a=b")
    assert ProviderOptions.of("") == ProviderOptions(None, "wait", None)


def test_a_session_has_the_error_of_its_options() -> None:
    for name in ("num_thread", "while_compiling"):
        options: dict[str, Any] = {name: "no"}
        with pytest.raises(Exception, match=name):
            session(network(1), **options)


def test_a_process_has_one_cache(tmp_path: Path) -> None:
    choose_folder("cache_folder", str(tmp_path / "one"))
    choose_folder("cache_folder", str(tmp_path / "one"))
    assert cache_folder("kernels") == tmp_path / "one" / "kernels"
    with pytest.raises(OptionError, match=r"cache_folder='.*two': this process .*Remedy"):
        choose_folder("cache_folder", str(tmp_path / "two"))


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OptionError, match=r"cache_folder='.*file': nothing can be kept.*Remedy"):
        choose_folder("cache_folder", str(tmp_path / "file"))
    assert cache_folder("kernels") != tmp_path / "file" / "kernels"


def test_an_empty_folder_keeps_nothing() -> None:
    choose_folder("cache_folder", "")
    assert cache_folder("kernels") is None
