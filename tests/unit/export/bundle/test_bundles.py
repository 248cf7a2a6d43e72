"""A bundle is complete: C programs that include it compute the interpreter's integers."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quantglow as qg
from quantglow.export.bundle import linking as flash
from quantglow.export.bundle.constants import Placement
from tests.support.bundled import MAIN as PROGRAM
from tests.support.bundled import each_compiler
from tests.support.combinations import mark_slow
from tests.support.small_network import small_model, small_samples

WARNINGS = ("-Wall", "-Wextra", "-pedantic", "-Werror")

MAIN = """
#include <stdio.h>
#include "net.h"
static char memory[NET_ARENA_NBYTES + NET_ARENA_ALIGN];
static char constants[NET_WEIGHTS_NBYTES + NET_ARENA_ALIGN];
static float input[NET_INPUT0_NBYTES / sizeof(float)];
static float scores[NET_OUTPUT0_NBYTES / sizeof(float)];
static float features[NET_OUTPUT1_NBYTES / sizeof(float)];

static char *aligned(char *bytes) {{
    while ((uintptr_t)bytes % NET_ARENA_ALIGN) bytes++;
    return bytes;
}}

int main(void) {{
    const void *inputs[NET_INPUT_COUNT];
    void *outputs[NET_OUTPUT_COUNT];
    char *arena = aligned(memory), *weights = aligned(constants);
    FILE *file = fopen("net_weights.bin", "rb");
    if (file) {{
        if (fread(weights, 1, NET_WEIGHTS_NBYTES, file) != NET_WEIGHTS_NBYTES) return 98;
        fclose(file);
    }}
    inputs[0] = input;
    outputs[0] = scores;
    outputs[1] = features;
    if (fread(input, 1, sizeof input, stdin) != sizeof input) return 99;
    {{
        int result = net_run(arena, {argument}inputs, outputs);
        if (result != NET_OK) return result;
    }}
    fwrite(scores, 1, sizeof scores, stdout);
    fwrite(features, 1, sizeof features, stdout);
    return 0;
}}
"""


@pytest.fixture(scope="module")
def compiled() -> Any:
    return qg.quantize_and_compile(small_model(), small_samples(), progress=False)


def output_of(folder: Path, compiler: str, sources: list[str], x: np.ndarray) -> bytes:
    command = [compiler, *WARNINGS, "-std=c99", *sources, "net.o", "-o", "main"]
    subprocess.run(command, cwd=folder, check=True)
    ran = subprocess.run(
        [folder / "main"], cwd=folder, input=x.tobytes(), capture_output=True, check=True
    )
    return ran.stdout


def expected(compiled: Any, x: np.ndarray) -> bytes:
    return b"".join(y.tobytes() for y in qg.interpret(compiled.graph, {"x": x}))


@pytest.mark.slow_variants
@each_compiler
@pytest.mark.parametrize("placement", ["object", "c"])
def test_c_programs_compute_the_interpreters_integers(
    compiled: Any, tmp_path: Path, compiler: str, placement: str
) -> None:
    compiled.export_bundle(tmp_path, name="net", weights=placement)
    (tmp_path / "main.c").write_text(MAIN.format(argument=""))
    sources = ["main.c", *(["net_weights.c"] if placement == "c" else [])]
    x = small_samples()[1]
    assert output_of(tmp_path, compiler, sources, x) == expected(compiled, x)


@pytest.mark.slow_variants
@each_compiler
def test_weights_may_come_from_a_file(compiled: Any, tmp_path: Path, compiler: str) -> None:
    compiled.export_bundle(tmp_path, name="net", weights="bin")
    text = MAIN.format(argument="weights, ")
    (tmp_path / "main.c").write_text(text)
    x = small_samples()[1]
    assert output_of(tmp_path, compiler, ["main.c"], x) == expected(compiled, x)


@pytest.mark.slow_variants
@each_compiler
@pytest.mark.parametrize("standard", ["c++98", "c++17"])
def test_the_header_and_a_program_are_c_plus_plus(
    compiled: Any, tmp_path: Path, standard: str, compiler: str
) -> None:
    compiled.export_bundle(tmp_path, name="net")
    for source in (tmp_path / "net.h", PROGRAM):
        command = [compiler, *WARNINGS, f"-std={standard}", "-x", "c++", "-fsyntax-only"]
        assert subprocess.run([*command, f"-I{tmp_path}", source]).returncode == 0


def test_an_int8_object_needs_no_library(compiled: Any, tmp_path: Path) -> None:
    compiled.export_bundle(tmp_path, name="net")
    if not shutil.which("nm"):
        pytest.skip("nm is not installed")
    asked = subprocess.run(
        ["nm", "-u", tmp_path / "net.o"], capture_output=True, text=True, check=True
    )
    assert set(asked.stdout.split()) - {"U"} <= {"memcpy", "memset"}


def test_the_manifest_has_the_hashes_of_all_files(compiled: Any, tmp_path: Path) -> None:
    compiled.export_bundle(tmp_path, name="net", weights="bin")
    files = json.loads((tmp_path / "net.json").read_text())["files"]
    assert files.keys() | {"net.json"} == {path.name for path in tmp_path.iterdir()}
    for file, facts in files.items():
        data = (tmp_path / file).read_bytes()
        assert facts == {"nbytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


@pytest.mark.slow_variants
@pytest.mark.parametrize("target", ["neon", "portable", "avx2"])
def test_any_target_can_be_named(compiled: Any, tmp_path: Path, target: str) -> None:
    compiled.export_bundle(tmp_path / target, name="net", target=target)
    manifest = json.loads((tmp_path / target / "net.json").read_text())
    assert manifest["target"]["name"] == target


WRONG = {
    "name": ({"name": "1st"}, "identifier"),
    "weights": ({"weights": "flash"}, "weights"),
    "target": ({"target": "z80"}, "unknown target"),
    "folder": ({"folder": "/dev/null/bundle"}, "cannot make"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_options_are_named(compiled: Any, tmp_path: Path, case: str) -> None:
    options, words = WRONG[case]
    with pytest.raises(qg.QuantglowError, match=words):
        compiled.export_bundle(**{"folder": tmp_path / "bundle", **options})
    assert not (tmp_path / "bundle").exists()


@pytest.mark.parametrize("file", ["main.c", "CMakeLists.txt"])
@pytest.mark.parametrize("text", ["", "int main(void) { return 0; }\n", "\xff\n"])
def test_a_file_that_the_user_wrote_is_not_overwritten(
    compiled: Any, tmp_path: Path, file: str, text: str
) -> None:
    (tmp_path / file).write_text(text, encoding="latin-1")
    with pytest.raises(qg.OptionError, match=rf"{file}' would be overwritten.*Remedy"):
        compiled.export_bundle(tmp_path, name="net")
    assert {path.name for path in tmp_path.iterdir()} == {file}
    assert (tmp_path / file).read_text(encoding="latin-1") == text


@pytest.mark.slow
def test_a_bundle_may_be_written_again_by_another_name(compiled: Any, tmp_path: Path) -> None:
    compiled.export_bundle(tmp_path, name="net")
    compiled.export_bundle(tmp_path, name="other")
    assert "other" in (tmp_path / "main.c").read_text()


def test_placements_are_the_documented_ones() -> None:
    assert [str(p) for p in Placement] == ["object", "c", "bin"]


@pytest.mark.slow_variants
@pytest.mark.parametrize("kind", ["flash", "ram"])
def test_a_bundle_beyond_a_limit_is_refused_with_its_figures(
    compiled: Any, tmp_path: Path, kind: str
) -> None:
    with pytest.raises(qg.QuantglowError, match=rf"needs [\d,]+ bytes .* more than max_{kind}=64"):
        compiled.export_bundle(tmp_path / "bundle", **{f"max_{kind}": 64})
    assert not (tmp_path / "bundle").exists()
    compiled.export_bundle(tmp_path / "bundle", **{f"max_{kind}": 1 << 20})


def flash_of(folder: Path) -> tuple[int, str]:
    """Bytes of flash by a bundle's manifest, and the way they were counted."""
    facts = json.loads((folder / "net.json").read_text())
    return facts["code_nbytes"] + facts["weights"]["nbytes"], facts["flash_counted"]


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("ld"), reason="no linker")
@pytest.mark.parametrize("target", mark_slow(["x86-64", "x86-64:all"], {"x86-64"}))
def test_flash_is_counted_as_it_is_linked(
    compiled: Any, tmp_path: Path, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled.export_bundle(tmp_path / "linked", name="net", target=target)
    monkeypatch.setattr(flash, "program_linkers", lambda *_: iter(()))
    compiled.export_bundle(tmp_path / "objects", name="net", target=target)
    (linked, by_linker), (loaded, by_objects) = map(
        flash_of, (tmp_path / "linked", tmp_path / "objects")
    )
    assert by_linker == "as ld links the example" and by_objects.startswith("all of the objects")
    assert 0 < linked < loaded
    compiled.export_bundle(tmp_path / "objects", name="net", target=target, max_flash=loaded)
    with pytest.raises(qg.BackendError, match="weights, all of the objects, as no linker"):
        compiled.export_bundle(tmp_path / "objects", name="net", target=target, max_flash=linked)
    monkeypatch.undo()
    compiled.export_bundle(tmp_path / "linked", name="net", target=target, max_flash=linked)


def test_a_linker_that_fails_leaves_the_objects(
    compiled: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = flash.Linker(["false"], ())
    monkeypatch.setattr(flash, "program_linkers", lambda *_: iter([failing]))
    compiled.export_bundle(tmp_path, name="net")
    assert flash_of(tmp_path)[1].startswith("all of the objects")
