"""The benchmark networks by name."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import numpy as np
import onnx

from benchmarks.networks import he_initialized, ocr_lines, ppocr, samples
from benchmarks.networks.efficientnet_lite0 import efficientnet_lite0
from benchmarks.networks.minilm import minilm
from benchmarks.networks.network import Array, Network, graph_inputs, with_input_shape
from tools.downloads.model_cache import cached, content_key

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"


def built(topology: he_initialized.Topology, batch: int) -> Path:
    """A network of ``he_initialized``; its file name holds a hash of that module's text."""
    key = content_key(Path(he_initialized.__file__))[:8]
    name = f"{topology.__name__}-b{batch}-{key}.onnx"
    return cached(name, lambda path: onnx.save(he_initialized.build(topology, batch), path))


def committed(file: Path, image_shape: tuple[int, ...], batch: int) -> Path:
    """A file of the repository, rewritten into the cache for other batches than 1."""
    if batch == 1:
        return file
    name = f"{file.stem}-b{batch}-{content_key(file)[:8]}.onnx"
    shape = (batch, *image_shape)
    return cached(name, lambda path: onnx.save(with_input_shape(onnx.load(file), shape), path))


def light_file(file: Path, batch: int) -> Path:
    """One of the onnx package's test networks; their reshapes fix the batch."""
    if batch != 1:
        raise ValueError(f"{file.name} runs at batch 1 only, not {batch}: drop it from --models")
    return file


def random_images(shape: tuple[int, ...], count: int, seed: int) -> Array:
    """Uniform numbers in [0, 1), for networks whose weights are placeholders."""
    return np.random.default_rng(seed).random((count, *shape), dtype=np.float32)


def light_network(file: Path) -> Network:
    (value,) = graph_inputs(onnx.load(file).graph)
    shape = tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim[1:])
    source, images = partial(light_file, file), partial(random_images, shape)
    return Network(file.stem, value.name, shape, source, images)


def repository_network(name: str, file: str, input_name: str, shape: tuple[int, ...]) -> Network:
    images, labeled = {
        "mnist": (samples.digits, samples.digits_labeled),
        "ppocr_cls": (samples.text_lines, samples.text_lines_labeled),
    }[name]
    source = partial(committed, samples.DATASETS / file, shape)
    return Network(name, input_name, shape, source, images, labeled)


def ppocr_networks() -> list[Network]:
    """Text recognition of a line, and text detection on a page."""
    line, sheet = (3, 48, 320), (3, samples.PAGE, samples.PAGE)
    read, find = (partial(ppocr.ppocr, name) for name in ("ppocr_rec", "ppocr_det"))
    return [
        Network("ppocr_rec", "x", line, read, samples.words, samples.words_labeled, ppocr.texts),
        Network("ppocr_det", "x", sheet, find, samples.pages, answers=ppocr.text_pixels),
    ]


def on_more_lines(network: Network) -> list[Network]:
    """A network of PP-OCR on more lines, and the same with logits in place of probabilities."""
    labeled = partial(ocr_lines.more_lines, network.name)
    more = replace(network, name=f"{network.name}_lines", labeled=labeled)
    source = partial(ocr_lines.logits_file, network.source)
    return [
        more,
        replace(more, name=f"{network.name}_logits", source=source, signal=ocr_lines.centered),
    ]


@cache
def registry() -> dict[str, Network]:
    """Every network by name: the benchmark table, PP-OCR, MiniLM, PP-OCR on more lines, then onnx's
    ``light_*``.
    """
    photo = (3, samples.CROP, samples.CROP)
    table = [
        repository_network("mnist", "mnist_cnn.onnx", "image", (1, 28, 28)),
        repository_network("ppocr_cls", "ppocr_cls.onnx", "x", (3, 48, 192)),
        Network(
            "efficientnet_lite0",
            "input",
            photo,
            efficientnet_lite0,
            samples.lite_photos,
            samples.lite_photos_labeled,
        ),
    ]
    for topology in (he_initialized.mobilenet_v2, he_initialized.resnet50):
        source = partial(built, topology)
        table.append(Network(topology.__name__, "input", photo, source, samples.imagenet_photos))
    table += ppocr_networks()
    table.append(Network("minilm", "ids", (samples.TOKENS,), minilm, samples.passages))
    table += [item for n in table if n.name in ocr_lines.COUNTS for item in on_more_lines(n)]
    table += [light_network(file) for file in sorted(LIGHT.glob("*.onnx"))]
    return {network.name: network for network in table}


TABLE = ("mnist", "ppocr_cls", "efficientnet_lite0", "mobilenet_v2", "resnet50")


def network(name: str) -> Network:
    """The network of this name.  Raises ``ValueError``, which lists all names."""
    actual = registry().get(name)
    if actual is None:
        raise ValueError(f"no benchmark network {name!r}; there are {', '.join(registry())}")
    return actual
