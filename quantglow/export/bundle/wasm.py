"""A model as a module of WebAssembly, with the ES module that loads it in Node and in browsers."""

from __future__ import annotations

import json
import re
from pathlib import Path

from quantglow.export.bundle.contents import Contents
from quantglow.export.bundle.header import RESULTS
from quantglow.export.bundle.linking import link, programs
from quantglow.memory.planner import ALIGNMENT
from quantglow.support.errors import BackendError
from quantglow.version import __version__

LEAST_STACK_NBYTES = 1 << 16
TEMPLATE = Path(__file__).with_name("module.mjs")
"""The ES module; words in ``__`` stand for what differs between models."""

ARRAYS = {
    "float": "Float32Array",
    "int8_t": "Int8Array",
    "uint8_t": "Uint8Array",
    "int16_t": "Int16Array",
    "int32_t": "Int32Array",
    "int64_t": "BigInt64Array",
}
"""Type of C -> typed array of JavaScript."""


def wasm_module(bundle: Contents) -> bytes:
    """``NAME.wasm``: memory, ``NAME_run``, and where free memory begins.

    Raises ``BackendError`` if there is no linker, and for models that need functions of C.
    """
    needs, program, file = bundle.needs, bundle.program, f"{bundle.name}.wasm"
    if missing := (*needs.libm, *needs.system, *needs.compiler):
        raise BackendError(
            f"a module of WebAssembly has no library, and the model calls {', '.join(missing)}. "
            "Remedy: quantize these operators, or leave library='shared' out and link the object "
            "with a library of C."
        )
    command = next(programs("wasm-ld"), None)
    if command is None:
        raise BackendError(
            "no linker for WebAssembly. Remedy: install lld, or `pip install ziglang`; or leave "
            "library='shared' out and link the object with wasm-ld yourself."
        )
    stack = max(LEAST_STACK_NBYTES, -(-2 * program.stack.most_nbytes // ALIGNMENT) * ALIGNMENT)
    exports = [f"--export={name}" for name in (f"{bundle.name}_run", "__heap_base")]
    options = ["--no-entry", "--strip-all", "--stack-first", "-z", f"stack-size={stack}"]
    return link(command, [program.code], [*options, *exports], file)


def es_module(bundle: Contents) -> str:
    """The text of ``NAME.mjs``."""
    ends = {"inputs": bundle.inputs, "outputs": bundle.outputs}
    facts = {
        "name": bundle.name,
        "version": __version__,
        "sourceHash": bundle.model.source_hash,
        "arenaBytes": bundle.program.arena_nbytes,
        "align": ALIGNMENT,
        **{
            word: [
                {
                    "name": tensor.name,
                    "array": ARRAYS[tensor.c_type],
                    "shape": list(tensor.shape),
                    "size": tensor.size,
                    "bytes": tensor.nbytes,
                    "scale": tensor.scale,
                    "zeroPoint": tensor.zero_point,
                }
                for tensor in tensors
            ]
            for word, tensors in ends.items()
        },
    }
    words = {
        "__NAME__": bundle.name,
        "__FACTS__": json.dumps(facts, indent=2),
        "__RESULTS__": json.dumps([meaning for _, meaning in sorted(RESULTS.values())], indent=2),
    }
    text = TEMPLATE.read_text(encoding="utf-8")
    return re.sub("|".join(words), lambda match: words[match[0]], text)
