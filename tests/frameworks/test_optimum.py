"""optimum's models answer alike with quantglow's provider, by the lines of the page.

optimum-onnx 0.1.0 needs an older version of transformers than other tests have, so it gets an
environment of its own on top of this one, which has PyTorch.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.support.packages import Recipe, environment
from tests.support.plug_in import build

pytestmark = pytest.mark.frameworks

BEFORE = """
import pathlib, torch, transformers
from optimum.onnxruntime import ORTModelForFeatureExtraction
if not pathlib.Path("bert").exists():
    torch.manual_seed(0)
    sizes = dict(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128)
    network = transformers.BertModel(transformers.BertConfig(vocab_size=100, **sizes))
    network.save_pretrained("torch")
    exported = ORTModelForFeatureExtraction.from_pretrained("torch", export=True)
    exported.save_pretrained("bert")
ids = torch.arange(5, 21).reshape(1, 16)
inputs = dict(input_ids=ids, attention_mask=torch.ones_like(ids), token_type_ids=0 * ids)
"""

RECIPE = Recipe(
    "optimum",
    ("optimum-onnx[onnxruntime]==0.1.0",),
    BEFORE,
    "model(**inputs).last_hidden_state.numpy().ravel().tolist()",
)


def test_optimum_answers_as_on_the_cpu_provider(tmp_path: Path) -> None:
    python = environment(tmp_path / "environment", *RECIPE.requirements)
    plain, result, calls = RECIPE.outcomes(python, build(tmp_path), tmp_path)
    assert calls > 0
    np.testing.assert_allclose(result, plain, atol=1e-4)
