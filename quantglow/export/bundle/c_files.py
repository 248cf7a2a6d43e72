"""C files beside the header: example, CMake project, thread pool, weights."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from quantglow.codegen.llvm.isa.target import Target
from quantglow.export.bundle.border import Bundle
from quantglow.export.bundle.constants import Weights
from quantglow.export.bundle.contents import BundleTensor, Contents
from quantglow.export.bundle.header import comment_text
from quantglow.ir.program.layout import ALIGNMENT
from quantglow.support.classes import cached_property
from quantglow.support.errors import OptionError

EXAMPLE_FIRST_LINE = "/* Runs {} once, on zeros, without allocating memory. */"
"""How every ``main.c`` of a bundle begins, with the bundle's name."""

SHOWN = 8
"""Maximum number of values of an output that are printed."""

CMAKE_FIRST_LINE = "# add_subdirectory() and target_link_libraries(program {}) add it to a program."
"""How every ``CMakeLists.txt`` of a bundle begins, with the bundle's name."""

ROW = 16
"""Bytes in a line."""


def example(bundle: Bundle) -> str:
    """The text of ``main.c``: C99 without warnings; ``-ffreestanding`` leaves the printing out."""
    functions = _example_functions(bundle)
    largest = bundle.largest.upper
    statements: list[str] = []
    for number, part in enumerate(bundle.segments, 1):
        if not isinstance(part, Contents):
            statements.append(f"    compute_{number}();")
            continue
        statements += functions[part.name].run()
        if number < len(bundle.segments):
            statements += ["    if (result)", "        return result;"]
    return "\n".join(
        [
            EXAMPLE_FIRST_LINE.format(bundle.name),
            *(f'#include "{name}.h"' for name in functions),
            "",
            "#if __STDC_HOSTED__",
            "#include <stdio.h>",
            "#endif",
            "",
            f"#define ALIGNED QUANTGLOW_ALIGN({largest}_ARENA_ALIGN)",
            f"static ALIGNED unsigned char arena[{largest}_ARENA_NBYTES];",
            *(line for function in functions.values() for line in function.memory()),
            "",
            *_caller_functions(bundle, functions.values()),
            "int main(void)",
            "{",
            "    int result;",
            *(line for function in functions.values() for line in function.loading()),
            *statements,
            "    return result;",
            "}",
            "",
        ]
    )


@dataclass(frozen=True)
class ExampleFunction:
    """A function in the example.

    ``suffix``: that of its variables.  ``earlier``: the variables of values that functions
    before it read or give.
    """

    contents: Contents
    suffix: str
    earlier: Mapping[str, str]

    @cached_property
    def inputs(self) -> dict[str, str]:
        """Its variables by the names of inputs, in order."""
        tensors = enumerate(self.contents.inputs)
        return {t.name: self.earlier.get(t.name, f"input{i}{self.suffix}") for i, t in tensors}

    @cached_property
    def outputs(self) -> dict[str, str]:
        """Its variables by the names of outputs, in order."""
        tensors = enumerate(self.contents.outputs)
        return {tensor.name: f"output{index}{self.suffix}" for index, tensor in tensors}

    def memory(self) -> Iterator[str]:
        """Definitions of its variables."""
        contents, suffix = self.contents, self.suffix
        new = [tensor for tensor in contents.inputs if tensor.name not in self.earlier]
        yield from _arrays(new, self.inputs)
        yield from _arrays(contents.outputs, self.outputs)
        inputs, outputs = (", ".join(v.values()) or "0" for v in (self.inputs, self.outputs))
        yield f"static const void *const inputs{suffix}[] = {{{inputs}}};"
        yield f"static void *const outputs{suffix}[] = {{{outputs}}};"
        if contents.has_weights:
            size = f"weights{suffix}[{contents.upper}_WEIGHTS_NBYTES]"
            yield "#if __STDC_HOSTED__"
            yield f"static ALIGNED unsigned char {size};"
            yield "#else"
            file = f"{contents.name}_weights.bin"
            yield f"/* The contents of {file}, aligned; your linker places them. */"
            yield f"extern const unsigned char {size};"
            yield "#endif"

    def loading(self) -> Iterator[str]:
        """Statements that read the constants, on systems with files."""
        if not self.contents.has_weights:
            return
        file, weights = f"{self.contents.name}_weights.bin", f"weights{self.suffix}"
        stream = f"file{self.suffix}"
        yield "#if __STDC_HOSTED__"
        yield f'    FILE *{stream} = fopen("{file}", "rb");'
        size = f"sizeof {weights}"
        yield f"    if (!{stream} || fread({weights}, 1, {size}, {stream}) != {size}) {{"
        yield f'        puts("cannot read {file}");'
        yield "        return -1;"
        yield "    }"
        yield f"    fclose({stream});"
        yield "#endif"

    def run(self) -> list[str]:
        """Statements that run it and print the first values of its outputs."""
        name, suffix = self.contents.name, self.suffix
        weights = f"weights{suffix}, " if self.contents.has_weights else ""
        run = f"{name}_run_at({name}_level(), " if self.contents.program.parts else f"{name}_run("
        return [
            f"    result = {run}arena, {weights}inputs{suffix}, outputs{suffix});",
            "#if __STDC_HOSTED__",
            f'    printf("{name}_run: %d\\n", result);',
            *(line for index in range(len(self.outputs)) for line in self._printing(index)),
            "#endif",
        ]

    def _printing(self, index: int) -> Iterator[str]:
        tensor = self.contents.outputs[index]
        yield f'    printf("output {index}:");'
        for element in range(min(SHOWN, tensor.size)):
            yield f'    printf(" %.9g", (double){self.outputs[tensor.name]}[{element}]);'
        yield '    printf("\\n");'


def _example_functions(bundle: Bundle) -> dict[str, ExampleFunction]:
    """The functions by name, in the order of a run."""
    functions: dict[str, ExampleFunction] = {}
    variables: dict[str, str] = {}
    for contents in bundle.functions:
        suffix = contents.name.removeprefix(bundle.name)
        function = ExampleFunction(contents, suffix, dict(variables))
        functions[contents.name] = function
        variables |= function.inputs | function.outputs
    return functions


def _arrays(tensors: Iterable[BundleTensor], variables: Mapping[str, str]) -> Iterator[str]:
    """Memory of inputs or outputs; C has no arrays without elements."""
    for tensor in tensors:
        size = f"{tensor.macro}_SIZE" if tensor.nbytes else "1"
        yield f"static {tensor.macro}_TYPE {variables[tensor.name]}[{size}];"


def _caller_functions(bundle: Bundle, functions: Iterable[ExampleFunction]) -> Iterator[str]:
    """Functions without statements, in the place of what the caller computes."""
    variables: dict[str, str] = {}
    for function in functions:
        variables |= function.inputs | function.outputs
    for number, part in enumerate(bundle.segments, 1):
        if isinstance(part, Contents):
            continue
        places = [v.name for v in (*part.reads, *part.results) if v.name in variables]
        yield "/* Yours to write; until then results stay zeros:"
        yield from (f"   {comment_text(line)}" for line in part.lines())
        yield from (f"   {variables[name]} is {comment_text(name)}" for name in places)
        yield "*/"
        yield f"static void compute_{number}(void)"
        yield "{"
        yield "}"
        yield ""


def cmake_lists(bundle: Bundle) -> str:
    """The text of ``CMakeLists.txt``: target ``NAME``, and ``NAME_example`` at the top level."""
    name, functions = bundle.name, bundle.functions
    sources = [source for function in functions for source in function.sources]
    objects = [source for source in sources if source.endswith(".o")]
    return "\n".join(
        [
            CMAKE_FIRST_LINE.format(name),
            "cmake_minimum_required(VERSION 3.13)",
            f"project({name} C)",
            "",
            f"add_library({name} STATIC {' '.join(sources)})",
            f"set_source_files_properties({' '.join(objects)} PROPERTIES EXTERNAL_OBJECT TRUE)",
            f"set_target_properties({name} PROPERTIES LINKER_LANGUAGE C)",
            f'target_include_directories({name} PUBLIC "${{CMAKE_CURRENT_SOURCE_DIR}}")',
            *(
                [f"target_link_libraries({name} PUBLIC m)"]
                if any(f.needs.libm for f in functions)
                else []
            ),
            *(threads(name) if functions[0].has_pool else []),
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
