"""Text from a decoder in ONNX, whose cache stays in memory from token to token.

The model is one of a kind that torch, Optimum and onnxruntime-genai export: inputs ``input_ids``,
``attention_mask``, perhaps ``position_ids``, and a cache ``past_key_values…`` that it gives back as
``present…``.  The tokenizer is a ``tokenizer.json`` of the package ``tokenizers``.

    pip install tokenizers
    python examples/generate.py model.onnx tokenizer.json "Once upon a time" --tokens 50
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import quantglow as qg

Choose = Callable[[np.ndarray], int]
"""The next token, from a score for each."""


def greedy(scores: np.ndarray) -> int:
    """The token of the highest score."""
    return int(scores.argmax())


def sampler(temperature: float, seed: int = 0) -> Choose:
    """Tokens drawn by their probability at a temperature."""
    random = np.random.default_rng(seed)

    def drawn(scores: np.ndarray) -> int:
        powers = np.exp((scores - scores.max()).astype(np.float64) / temperature)
        return int(random.choice(len(scores), p=powers / powers.sum()))

    return drawn


def generated(
    compiled: Any, prompt: list[int], count: int, choose: Choose = greedy
) -> Iterator[int]:
    """The tokens behind a prompt, one after the other."""
    takes_positions = "position_ids" in {info.name for info in compiled.get_inputs()}
    state = compiled.new_state(capacity=len(prompt) + count)
    tokens = prompt
    for _ in range(count):
        length = state.length + len(tokens)
        feeds = {
            "input_ids": np.array([tokens]),
            "attention_mask": np.ones((1, length), np.int64),
        }
        if takes_positions:
            feeds["position_ids"] = np.arange(state.length, length)[None]
        (logits,) = state.run(["logits"], feeds)
        tokens = [choose(logits[0, -1])]
        yield tokens[0]


def main() -> None:
    """Read the arguments and write the text as it comes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("tokenizer")
    parser.add_argument("text")
    parser.add_argument("--tokens", type=int, default=50)
    parser.add_argument("--temperature", type=float, default=0.0, help="0: the likeliest token")
    options = parser.parse_args()

    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(options.tokenizer)
    choose = sampler(options.temperature) if options.temperature else greedy
    found = list(tokenizer.encode(options.text).ids)
    shown = tokenizer.decode(found)
    print(shown, end="", flush=True)
    for token in generated(qg.compile(options.model), list(found), options.tokens, choose):
        found.append(token)
        text = tokenizer.decode(found)
        print(text[len(shown) :], end="", flush=True)
        shown = text
    print()


if __name__ == "__main__":
    main()
