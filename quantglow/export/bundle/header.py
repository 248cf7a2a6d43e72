"""The C header of a bundle: C99, and C++."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from quantglow.export.bundle.constants import ABI
from quantglow.export.bundle.contents import BundleTensor, Contents
from quantglow.export.bundle.object_tables import MOST_VLEN
from quantglow.export.bundle.run_functions import (
    MISALIGNED,
    NULL,
    OK,
    OUT_OF_RANGE,
    REFUSED,
    UNSUPPORTED,
)
from quantglow.ir.program.layout import ALIGNMENT
from quantglow.version import __version__

RESULTS = {
    "OK": (OK, "the outputs are written"),
    "NULL": (NULL, "a pointer is null"),
    "MISALIGNED": (MISALIGNED, "memory is not aligned: the arena, the weights, an input or output"),
    "OUT_OF_RANGE": (OUT_OF_RANGE, "an index in an input is out of range; outputs are undefined"),
    "REFUSED": (REFUSED, "the operating system refuses registers that the code needs"),
    "UNSUPPORTED": (UNSUPPORTED, "the processor lacks instructions that the code needs"),
}

ALIGN = """
/* Alignment of a variable; other compilers: define it before this line. */
#ifndef QUANTGLOW_ALIGN
#if defined(__GNUC__) || defined(__clang__)
#define QUANTGLOW_ALIGN(nbytes) __attribute__((aligned(nbytes)))
#elif defined(_MSC_VER)
#define QUANTGLOW_ALIGN(nbytes) __declspec(align(nbytes))
#endif
#endif
"""

FACTS = """
#ifndef QUANTGLOW_FACTS
#define QUANTGLOW_FACTS
/* An input or output. type: number in ONNX's TensorProto. scale: 0 if it is not quantized. */
typedef struct quantglow_tensor {
    const char *name;
    const int64_t *shape;
    int64_t nbytes;
    float scale;
    int32_t zero_point;
    int32_t type;
    int32_t rank;
} quantglow_tensor;

/* A model. source_hash: that of its ONNX file. kernels: their names, in the order of a run. */
typedef struct quantglow_facts {
    const char *name;
    const char *target;
    const char *version;
    const char *source_hash;
    const quantglow_tensor *inputs;
    const quantglow_tensor *outputs;
    const char *const *kernels;
    int64_t arena_nbytes;
    int64_t arena_align;
    int64_t weights_nbytes;
    int32_t abi;
    int32_t input_count;
    int32_t output_count;
    int32_t kernel_count;
} quantglow_facts;
#endif
"""
"""The layouts of ``quantglow/export/bundle/constants.py``."""


def header(bundle: Contents, order: Sequence[str] = ()) -> str:
    """The text of ``NAME.h``; ``order``: functions and operators of the model that it is part of,
    one a line."""
    name, upper, program = bundle.name, bundle.upper, bundle.program
    inputs, outputs = bundle.inputs, bundle.outputs
    guard = f"QUANTGLOW_{upper}_H"
    return "\n".join(
        [
            f"/* {name}: compiled by quantglow {__version__} for {bundle.target.name}. */",
            f"/* It needs {bundle.needs}. */",
            *(_part_of(order) if order else ()),
            f"#ifndef {guard}",
            f"#define {guard}",
            "",
            "#include <stdint.h>",
            *ALIGN.splitlines(),
            *FACTS.splitlines(),
            "",
            f"#define {upper}_ABI {ABI}",
            "",
            "/* Bytes and alignment of the memory that a run writes, beside inputs and outputs. */",
            f"#define {upper}_ARENA_NBYTES {program.arena_nbytes}",
            f"#define {upper}_ARENA_ALIGN {ALIGNMENT}",
            *stack(upper, bundle),
            "/* Bytes of the constants, which are only read. */",
            f"#define {upper}_WEIGHTS_NBYTES {program.weights.nbytes}",
            f"#define {upper}_KERNEL_COUNT {len(program.kernels)}",
            "",
            f"#define {upper}_INPUT_COUNT {len(inputs)}",
            f"#define {upper}_OUTPUT_COUNT {len(outputs)}",
            *(line for tensor in (*inputs, *outputs) for line in _macros(tensor)),
            "",
            "/* Results of a run. */",
            *results(upper),
            "",
            "#ifdef __cplusplus",
            'extern "C" {',
            "#endif",
            "",
            *_functions(bundle),
            "",
            "#ifdef __cplusplus",
            "}",
            "#endif",
            "",
            "#endif",
            "",
        ]
    )


def stack(upper: str, bundle: Contents) -> Iterator[str]:
    """Macros of the stack; where vector registers differ in width, it is a function of that."""
    frame = bundle.program.stack
    if not bundle.target.scales_vectors:
        yield "/* Bytes of stack that a run takes, beside memcpy and memset. */"
        yield f"#define {upper}_STACK_NBYTES {frame.nbytes}"
        return
    yield (
        "/* Bytes of stack that a run takes, beside memcpy and memset, with vector registers of\n"
        f"   `vlen` bits: {bundle.name}_vlen() of this processor, at most QUANTGLOW_VLEN, which\n"
        "   may be defined before this line. */"
    )
    yield "#ifndef QUANTGLOW_VLEN"
    yield f"#define QUANTGLOW_VLEN {MOST_VLEN}"
    yield "#endif"
    scaled = f"{frame.nbytes} + {frame.registers} * ((vlen) / 8)"
    yield f"#define {upper}_STACK_NBYTES_AT(vlen) ({scaled})"
    yield f"#define {upper}_STACK_NBYTES {upper}_STACK_NBYTES_AT(QUANTGLOW_VLEN)"


def _macros(tensor: BundleTensor) -> Iterator[str]:
    """The facts of an input or output."""
    yield f"/* {comment_text(tensor.name)} */"
    yield f"#define {tensor.macro}_TYPE {tensor.c_type}"
    yield f"#define {tensor.macro}_SIZE {tensor.size}"
    yield f"#define {tensor.macro}_NBYTES {tensor.nbytes}"
    yield f"#define {tensor.macro}_RANK {len(tensor.shape)}"
    sizes = ", ".join(map(str, tensor.shape)) or "1"
    yield f"#define {tensor.macro}_SHAPE {{{sizes}}}"
    if tensor.scale is not None:
        yield f"#define {tensor.macro}_SCALE {tensor.scale:.9e}f"
        yield f"#define {tensor.macro}_ZERO_POINT ({tensor.zero_point})"


def _part_of(order: Sequence[str]) -> Iterator[str]:
    """Comment about the segments before and behind a function that is a part of a model."""
    yield "/* It is a part of a model, which is computed in this order:"
    yield from (f"   {comment_text(line)}" for line in order)
    yield "*/"


def comment_text(text: str) -> str:
    """A name that ends no comment and fits in a line."""
    shown = text.encode("ascii", "replace").decode().replace("*/", "* /").replace("/*", "/ *")
    return "".join(c if c.isprintable() else "?" for c in shown)


def results(upper: str) -> Iterator[str]:
    """The codes that a run returns."""
    for word, (code, meaning) in RESULTS.items():
        yield f"#define {upper}_{word} {code} /* {meaning} */"


def _functions(bundle: Contents) -> Iterator[str]:
    """Declarations, with what the caller has to know."""
    name = bundle.name
    weights = ""
    if bundle.has_weights:
        weights = "const void *weights, "
        yield f"/* `weights`: the contents of {name}_weights.bin, aligned as the arena. */"
    yield (
        "/* Computes the outputs. Inputs and outputs are arrays of pointers in the order above;\n"
        "   their memory must not overlap, nor lie in the arena. Nothing is allocated or kept:\n"
        "   threads with arenas and outputs of their own may run at once. */"
    )
    arguments = f"void *arena, {weights}const void *const *inputs, void *const *outputs"
    yield f"int {name}_run({arguments});"
    yield ""
    yield "/* The same; calls `observer` before (phase 0) and after (phase 1) each kernel. */"
    yield f"typedef void (*{name}_observer)(void *user, int kernel, int phase);"
    yield f"int {name}_run_observed({arguments},\n    {name}_observer observer, void *user);"
    if bundle.target.has_threads:
        yield ""
        yield (
            "/* The same by several threads: each of `parts` calls it with the same memory and a\n"
            "   part of its own, from 0. `barrier` returns once all of them are in it. A result\n"
            "   other than OK of any thread is that of the run. */"
        )
        yield f"typedef void (*{name}_barrier)(void *user);"
        yield f"int {name}_run_part({arguments},\n    {_identifier(name)});"
    if bundle.target.scales_vectors:
        yield ""
        yield "/* Bits of a vector register of this processor, which must have vectors. */"
        yield f"int {name}_vlen(void);"
    yield from _levels(bundle)
    yield ""
    yield "/* The facts of this header as data; linkers drop them where nobody reads them. */"
    yield f"extern const quantglow_facts {name}_facts;"


def _identifier(name: str) -> str:
    """The last arguments of a run by several threads."""
    return f"int part, int parts, {name}_barrier barrier, void *user"


def _levels(bundle: Contents) -> Iterator[str]:
    """Declarations of the code of each level, if there are several."""
    if parts := bundle.program.parts:
        weights = "const void *weights, " if bundle.has_weights else ""
        arguments = f"void *arena, {weights}const void *const *inputs, void *const *outputs"
        yield ""
        yield "/* The level that a run chooses on this processor: 0 for the first of these. */"
        yield f"#define {bundle.upper}_LEVEL_COUNT {len(parts)}"
        yield f"int {bundle.name}_level(void);"
        yield (
            "/* Runs at a level that was asked for once: asking takes microseconds in a virtual\n"
            "   machine, and a run keeps nothing. */"
        )
        yield f"int {bundle.name}_run_at(int level, {arguments});"
        observed = f"{bundle.name}_observer observer, void *user"
        yield f"int {bundle.name}_run_observed_at(int level, {arguments},\n    {observed});"
        part = _identifier(bundle.name)
        yield f"int {bundle.name}_run_part_at(int level, {arguments},\n    {part});"
        for part in parts:
            yield f"int {part}_run({arguments});"
            yield f"extern const quantglow_facts {part}_facts; /* its kernels */"
