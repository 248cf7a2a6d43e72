"""C files beside the header: example, CMake project, thread pool, weights."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from quantglow.codegen.llvm.isa.target import Target
from quantglow.export.bundle.constants import Weights
from quantglow.export.bundle.contents import BundleTensor, Contents
from quantglow.ir.program.layout import ALIGNMENT
from quantglow.support.errors import OptionError

EXAMPLE_FIRST_LINE = "/* Runs {} once, on zeros, without allocating memory. */"
"""How every ``main.c`` of a bundle begins, with the bundle's name."""

SHOWN = 8
"""Maximum number of values of an output that are printed."""

CMAKE_FIRST_LINE = "# add_subdirectory() and target_link_libraries(program {}) add it to a program."
"""How every ``CMakeLists.txt`` of a bundle begins, with the bundle's name."""

ROW = 16
"""Bytes in a line."""


def example(bundle: Contents) -> str:
    """The text of ``main.c``: C99 without warnings; ``-ffreestanding`` leaves the printing out."""
    name, upper = bundle.name, bundle.upper
    inputs, outputs = _arrays(bundle.inputs, "input"), _arrays(bundle.outputs, "output")
    weights = "weights, " if bundle.has_weights else ""
    run = f"{name}_run_at({name}_level(), " if bundle.program.parts else f"{name}_run("
    return "\n".join(
        [
            EXAMPLE_FIRST_LINE.format(name),
            f'#include "{name}.h"',
            "",
            "#if __STDC_HOSTED__",
            "#include <stdio.h>",
            "#endif",
            "",
            f"#define ALIGNED QUANTGLOW_ALIGN({upper}_ARENA_ALIGN)",
            f"static ALIGNED unsigned char arena[{upper}_ARENA_NBYTES];",
            *inputs,
            *outputs,
            f"static const void *const inputs[] = {{{_pointers(bundle.inputs, 'input')}}};",
            f"static void *const outputs[] = {{{_pointers(bundle.outputs, 'output')}}};",
            *(_weight_lines(bundle) if bundle.has_weights else ()),
            "",
            "int main(void)",
            "{",
            "    int result;",
            *(_loading(bundle) if bundle.has_weights else ()),
            f"    result = {run}arena, {weights}inputs, outputs);",
            "#if __STDC_HOSTED__",
            f'    printf("{name}_run: %d\\n", result);',
            *(line for index in range(len(outputs)) for line in _printing(bundle, index)),
            "#endif",
            "    return result;",
            "}",
            "",
        ]
    )


def _arrays(tensors: Sequence[BundleTensor], word: str) -> list[str]:
    """Memory of inputs or outputs; C has no arrays without elements."""
    sizes = (f"{tensor.macro}_SIZE" if tensor.nbytes else "1" for tensor in tensors)
    return [
        f"static {tensor.macro}_TYPE {word}{index}[{size}];"
        for index, (tensor, size) in enumerate(zip(tensors, sizes, strict=True))
    ]


def _pointers(tensors: Sequence[BundleTensor], word: str) -> str:
    """The elements of an array of pointers."""
    return ", ".join(f"{word}{index}" for index in range(len(tensors))) or "0"


def _weight_lines(bundle: Contents) -> Iterator[str]:
    """Memory of the constants: filled from the file, or placed by the linker."""
    upper = bundle.upper
    size = f"weights[{upper}_WEIGHTS_NBYTES]"
    yield "#if __STDC_HOSTED__"
    yield f"static ALIGNED unsigned char {size};"
    yield "#else"
    yield f"/* The contents of {bundle.name}_weights.bin, aligned; your linker places them. */"
    yield f"extern const unsigned char {size};"
    yield "#endif"


def _loading(bundle: Contents) -> Iterator[str]:
    """Statements that read the constants, on systems with files."""
    file = f"{bundle.name}_weights.bin"
    yield "#if __STDC_HOSTED__"
    yield f'    FILE *file = fopen("{file}", "rb");'
    yield "    if (!file || fread(weights, 1, sizeof weights, file) != sizeof weights) {"
    yield f'        puts("cannot read {file}");'
    yield "        return -1;"
    yield "    }"
    yield "    fclose(file);"
    yield "#endif"


def _printing(bundle: Contents, index: int) -> Iterator[str]:
    """Statements that print the first values of an output."""
    tensor = bundle.outputs[index]
    yield f'    printf("output {index}:");'
    for element in range(min(SHOWN, tensor.size)):
        yield f'    printf(" %.9g", (double)output{index}[{element}]);'
    yield '    printf("\\n");'


def cmake_lists(bundle: Contents) -> str:
    """The text of ``CMakeLists.txt``: target ``NAME``, and ``NAME_example`` at the top level."""
    name = bundle.name
    objects = [source for source in bundle.sources if source.endswith(".o")]
    return "\n".join(
        [
            CMAKE_FIRST_LINE.format(name),
            "cmake_minimum_required(VERSION 3.13)",
            f"project({name} C)",
            "",
            f"add_library({name} STATIC {' '.join(bundle.sources)})",
            f"set_source_files_properties({' '.join(objects)} PROPERTIES EXTERNAL_OBJECT TRUE)",
            f"set_target_properties({name} PROPERTIES LINKER_LANGUAGE C)",
            f'target_include_directories({name} PUBLIC "${{CMAKE_CURRENT_SOURCE_DIR}}")',
            *([f"target_link_libraries({name} PUBLIC m)"] if bundle.needs.libm else []),
            *(threads(name) if bundle.has_pool else []),
            "",
            "if(CMAKE_SOURCE_DIR STREQUAL CMAKE_CURRENT_SOURCE_DIR)",
            f"  add_executable({name}_example main.c)",
            f"  target_link_libraries({name}_example {name})",
            "endif()",
            "",
        ]
    )


def threads(name: str) -> list[str]:
    """Lines that link the system's threads."""
    return [
        "set(THREADS_PREFER_PTHREAD_FLAG ON)",
        "find_package(Threads REQUIRED)",
        f"target_link_libraries({name} PUBLIC Threads::Threads)",
    ]


TEMPLATES = {kind: Path(__file__).with_name(f"pool.{kind}") for kind in ("h", "c")}


def check_pool(target: Target) -> None:
    """Raise ``OptionError`` for targets without Linux."""
    if "linux" not in target.triple:
        raise OptionError(
            f"threads=True: the pool is for Linux, and {target.name!r} is {target.triple}. "
            "Remedy: leave it out; NAME_run_part runs by threads of yours, where there are any."
        )


def pool_files(bundle: Contents) -> dict[str, str]:
    """``NAME_pool.h`` and ``NAME_pool.c``."""
    return {f"{bundle.name}_pool.{k}": _fill(path, bundle) for k, path in TEMPLATES.items()}


def _fill(template: Path, bundle: Contents) -> str:
    """The text of a template for a bundle."""
    weights, levels = bundle.has_weights, bool(bundle.program.parts)
    words = {
        "LEVEL_FIELD": "\n    int level;" if levels else "",
        "LEVEL_SUFFIX": "_at" if levels else "",
        "LEVEL_ARGUMENT": "pool->level, " if levels else "",
        "LEVEL_START": f"\n    pool->level = {bundle.name}_level();" if levels else "",
        "WEIGHTS_FIELD": "\n    const void *weights;" if weights else "",
        "WEIGHTS_PARAMETER": "const void *weights, " if weights else "",
        "WEIGHTS_ARGUMENT": "pool->weights, " if weights else "",
        "WEIGHTS_START": "\n    pool->weights = weights;" if weights else "",
        "UPPER": bundle.upper,
        "NAME": bundle.name,
    }
    text = template.read_text(encoding="utf-8")
    return re.sub("|".join(words), lambda match: words[match[0]], text)


def c_weights(name: str, weights: Weights) -> str:
    """The text of ``NAME_weights.c``."""
    data = b"".join(weights.pieces())
    return "\n".join(
        [
            f"/* The constants of {name}; they are never written. */",
            f'#include "{name}.h"',
            "",
            f"extern const unsigned char {name}_weights[{len(data)}];",
            f"QUANTGLOW_ALIGN({ALIGNMENT}) const unsigned char {name}_weights[{len(data)}] = {{",
            *_rows(data),
            "};",
            "",
        ]
    )


def _rows(data: bytes) -> Iterator[str]:
    """Lines of numbers."""
    for start in range(0, len(data), ROW):
        yield ",".join(map(str, data[start : start + ROW])) + ","
