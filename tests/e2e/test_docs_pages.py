"""README.md and the pages of the documentation run, on models with one input and output and with
several."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import quantglow as qg
from tests.support import plug_in
from tests.support.decoder import Decoder, decoder_model, random_weights
from tests.support.documented import (
    BOTH,
    ELSEWHERE,
    ONE,
    ROOT,
    blocks,
    classifier,
    commands,
    forget_modules,
    free_network,
    models_of,
    network,
    pages,
    quick_models,
    run_command,
    samples_of,
    scores_of_tokens,
)

OTHERS = {
    "docs/deploy.md": "tests/e2e/test_deploy.py",
    "docs/pytorch.md": "tests/frameworks/test_page.py",
}
"""Pages whose code another test runs, on both kinds of models, too."""

PAGES = [page for page in pages() if page not in OTHERS]
CASES = [
    pytest.param(page, model, marks=() if model in quick_models(page) else pytest.mark.slow)
    for page in PAGES
    for model in models_of(page)
]
"""Each block runs by default; slow: the same blocks with models of more inputs or outputs."""

Names = dict[str, Any]


def ordinary(model: str) -> Names:
    """A network, and samples as a file and as arrays."""
    onnx.save(network(model), "model.onnx")
    arrays = samples_of(network(model))
    np.savez("samples.npz", **arrays)
    np.savez("one.npz", **{name: values[:1] for name, values in arrays.items()})
    return {"samples": arrays}


def of_speed(model: str) -> Names:
    """A compiled network, whose file is there."""
    names = ordinary(model)
    compiled = qg.quantize_and_compile("model.onnx", names["samples"], verify=False)
    compiled.save("model.qgm")
    return {**names, "compiled": compiled}


def of_shapes(model: str) -> Names:
    """A network of any batch and length."""
    onnx.save(free_network(model), "model.onnx")
    return {}


def of_serving(model: str) -> Names:
    """A compiled network of any batch, and requests."""
    arrays = samples_of(free_network(model))
    requests = [{name: values[i : i + 1] for name, values in arrays.items()} for i in range(12)]
    compiled = qg.compile(free_network(model))
    compiled.run(None, requests[0])
    return {"compiled": compiled, "requests": requests}


def of_decoders(model: str) -> Names:
    """A decoder with caches, or one without."""
    tokens = np.zeros((1, 3), np.int64)
    if model == ONE:
        onnx.save(scores_of_tokens(), "decoder.onnx")
        return {"samples": [{"tokens": tokens}] * 2}
    sizes = Decoder(layers=1, hidden=64, heads=2, kv_heads=1, inner=64, vocabulary=64)
    onnx.save(decoder_model(sizes, random_weights(0)), "decoder.onnx")
    return {"samples": [sizes.feeds(tokens, sizes.empty_cache(1))] * 2}


def of_images(model: str) -> Names:
    """A classifier, and images as an array and in folders."""
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    onnx.save(classifier(model), "model.onnx")
    rng = np.random.default_rng(1)
    images = rng.integers(0, 256, (6, 224, 224, 3)).astype(np.uint8)
    size = {"size": rng.standard_normal((6, 2)).astype(np.float32)} if model == BOTH else {}
    np.savez("images.npz", x=images, **size)
    for index, pixels in enumerate(images):
        for place in ("photos", f"validation/{'ab'[index % 2]}"):
            Path(place).mkdir(parents=True, exist_ok=True)
            image.fromarray(pixels).save(f"{place}/{index}.png")
    return {}


def of_onnxruntime(model: str) -> Names:
    """A network, in a process that has the plug-in."""
    plug_in.register()
    return ordinary(model)


GIVEN: dict[str, Callable[[str], Names]] = {
    "docs/how_to/data.md": of_images,
    "docs/how_to/decoders.md": of_decoders,
    "docs/how_to/onnxruntime.md": of_onnxruntime,
    "docs/how_to/serving.md": of_serving,
    "docs/how_to/shapes.md": of_shapes,
    "docs/how_to/speed.md": of_speed,
    "docs/how_to/steps.md": of_images,
}
"""Names that the text of a page takes as given, and files; of other pages: ``ordinary``."""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of its own to work in, from which modules are imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    forget_modules(tmp_path)


@pytest.mark.slow_variants
@pytest.mark.parametrize(("page", "model"), CASES)
def test_the_code_of_a_page_runs(page: str, model: str, here: Path) -> None:
    names = {"np": np, "qg": qg, "model": "model.onnx", **GIVEN.get(page, ordinary)(model)}
    if page == "docs/reference/command_line.md":
        run_command(["opt", "model.onnx", "--max-elements", "10000000", ">", "graph.txt"])
    ran = blocks(page, model)
    for block in ran:
        block.run(page, names)
    assert any(block.does_something for block in ran)


def test_pages_of_other_tests_exist() -> None:
    files = {**OTHERS, **dict.fromkeys(GIVEN, "README.md")}
    assert all((ROOT / name).exists() for pair in files.items() for name in pair)


def test_commands_that_are_left_out_are_tested_elsewhere() -> None:
    texts = [block.text for page in pages() for m in models_of(page) for block in blocks(page, m)]
    lines = {" ".join(line.split()) for text in texts for line in text.splitlines()}
    assert {line.split("&& ")[-1] for line in lines} >= ELSEWHERE.keys()
    assert all((ROOT / place.partition(":")[0]).exists() for place in ELSEWHERE.values())


def test_a_block_without_commands_is_not_counted() -> None:
    assert not any(commands("make test\npip install x && python -m y\n"))
    assert os.fspath(ROOT / "README.md") and "README.md" in PAGES
