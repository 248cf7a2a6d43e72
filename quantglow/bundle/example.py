"""The ``main.c`` of a bundle: one run on zeros, on a system or on bare metal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from quantglow.bundle.contents import Contents
from quantglow.bundle.tensors import Tensor

EXAMPLE_FIRST_LINE = "/* Runs {} once, on zeros, without allocating memory. */"
"""How every ``main.c`` of a bundle begins, with the bundle's name."""

SHOWN = 8
"""Maximum number of values of an output that are printed."""


def example(bundle: Contents) -> str:
    """The text of ``main.c``: C99 without warnings; ``-ffreestanding`` leaves the printing out."""
    name, upper = bundle.name, bundle.upper
    inputs, outputs = arrays(bundle.inputs, "input"), arrays(bundle.outputs, "output")
    weights = "weights, " if bundle.has_weights else ""
    run = f"{name}_run_at({name}_level(), " if bundle.made.parts else f"{name}_run("
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
            f"static const void *const inputs[] = {{{pointers(bundle.inputs, 'input')}}};",
            f"static void *const outputs[] = {{{pointers(bundle.outputs, 'output')}}};",
            *(weights_of(bundle) if bundle.has_weights else ()),
            "",
            "int main(void)",
            "{",
            "    int result;",
            *(loading(bundle) if bundle.has_weights else ()),
            f"    result = {run}arena, {weights}inputs, outputs);",
            "#if __STDC_HOSTED__",
            f'    printf("{name}_run: %d\\n", result);',
            *(line for index in range(len(outputs)) for line in printing(bundle, index)),
            "#endif",
            "    return result;",
            "}",
            "",
        ]
    )


def arrays(tensors: Sequence[Tensor], word: str) -> list[str]:
    """Memory of inputs or outputs; C has no arrays without elements."""
    sizes = (f"{tensor.macro}_SIZE" if tensor.nbytes else "1" for tensor in tensors)
    return [
        f"static {tensor.macro}_TYPE {word}{index}[{size}];"
        for index, (tensor, size) in enumerate(zip(tensors, sizes, strict=True))
    ]


def pointers(tensors: Sequence[Tensor], word: str) -> str:
    """The elements of an array of pointers."""
    return ", ".join(f"{word}{index}" for index in range(len(tensors))) or "0"


def weights_of(bundle: Contents) -> Iterator[str]:
    """Memory of the constants: filled from the file, or placed by the linker."""
    upper = bundle.upper
    size = f"weights[{upper}_WEIGHTS_NBYTES]"
    yield "#if __STDC_HOSTED__"
    yield f"static ALIGNED unsigned char {size};"
    yield "#else"
    yield f"/* The contents of {bundle.name}_weights.bin, aligned; your linker places them. */"
    yield f"extern const unsigned char {size};"
    yield "#endif"


def loading(bundle: Contents) -> Iterator[str]:
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


def printing(bundle: Contents, index: int) -> Iterator[str]:
    """Statements that print the first values of an output."""
    tensor = bundle.outputs[index]
    yield f'    printf("output {index}:");'
    for element in range(min(SHOWN, tensor.size)):
        yield f'    printf(" %.9g", (double)output{index}[{element}]);'
    yield '    printf("\\n");'
