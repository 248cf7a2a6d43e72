"""The benchmark networks: where their ONNX files come from and what goes into them.

``python -m benchmarks.models [NAME ...]`` builds the files into the cache and prints what is there;
``--folder FOLDER`` copies them there as ``NAME.onnx``, for the recipes of ``calibration/``.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from benchmarks import lines, networks, ppocr, samples
from benchmarks.cache import cached, content_key
from benchmarks.export_efficientnet_lite0 import efficientnet_lite0
from benchmarks.export_minilm import minilm
from benchmarks.macs import count_macs

Array = NDArray[Any]
Feeds = dict[str, Array]
Answers = Callable[[NDArray[Any]], NDArray[Any]]
"""Outputs of all samples -> what they say."""
Signal = Callable[[NDArray[Any]], NDArray[Any]]
"""The output of one sample -> what of it counts for the SQNR."""
LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"


def largest(outputs: NDArray[Any]) -> NDArray[np.intp]:
    """The index of the largest output of each sample."""
    found: NDArray[np.intp] = outputs.reshape(len(outputs), -1).argmax(axis=1)
    return found


def whole(output: NDArray[Any]) -> NDArray[Any]:
    """All of an output."""
    return output


@dataclass(frozen=True)
class Network:
    """One benchmark network.  ``source(batch)`` makes its ONNX file; shapes are without batch."""

    name: str
    input_name: str
    image_shape: tuple[int, ...]
    source: Callable[[int], Path]
    images: Callable[[int, int], Array]
    labelled: Callable[[], tuple[Array, NDArray[Any]]] | None = None
    answers: Answers = largest
    signal: Signal = whole

    def path(self, batch: int = 1) -> Path:
        """The ONNX file, built where it is missing."""
        return self.source(batch)

    def input_shape(self, batch: int = 1) -> tuple[int, ...]:
        """Shape of the only input."""
        return (batch, *self.image_shape)

    def samples(self, count: int, seed: int = 0) -> Array:
        """``count`` realistic inputs [count, *image_shape]; another seed gives other ones."""
        return self.images(count, seed)

    def feeds(self, count: int, seed: int = 0, batch: int = 1) -> list[Feeds]:
        """``count`` feeds of ``batch`` samples each."""
        arrays = self.samples(count * batch, seed).reshape(count, *self.input_shape(batch))
        return [{self.input_name: array} for array in arrays]

    def calibration(self, samples: int, batch: int) -> list[Feeds]:
        """At least ``samples`` samples in feeds of ``batch``: a larger batch gets fewer feeds."""
        return self.feeds(-(-samples // batch), batch=batch)

    def macs(self, batch: int = 1) -> int:
        """Multiply-accumulates of one run."""
        return count_macs(with_input_shape(onnx.load(self.path(batch)), self.input_shape(batch)))


def graph_inputs(graph: onnx.GraphProto) -> list[onnx.ValueInfoProto]:
    """The inputs that are no initializers (old files list those, too)."""
    weights = {tensor.name for tensor in graph.initializer}
    return [value for value in graph.input if value.name not in weights]


def with_input_shape(model: onnx.ModelProto, shape: tuple[int, ...]) -> onnx.ModelProto:
    """The model with its only input fixed at ``shape``; intermediate shapes are inferred anew."""
    (value,) = graph_inputs(model.graph)
    if [dim.dim_value for dim in value.type.tensor_type.shape.dim] == list(shape):
        return model
    fixed = onnx.ModelProto()
    fixed.CopyFrom(model)
    (value,) = graph_inputs(fixed.graph)
    for dim, size in zip(value.type.tensor_type.shape.dim, shape, strict=True):
        dim.dim_value = size
    for output in fixed.graph.output:
        output.type.tensor_type.shape.dim[0].dim_value = shape[0]
    del fixed.graph.value_info[:]
    return fixed


def built(topology: networks.Topology, batch: int) -> Path:
    """A He-initialised network of `benchmarks.networks`; its key holds that file's content."""
    key = content_key(Path(networks.__file__))[:8]
    name = f"{topology.__name__}-b{batch}-{key}.onnx"
    return cached(name, lambda path: onnx.save(networks.build(topology, batch), path))


def committed(file: Path, image_shape: tuple[int, ...], batch: int) -> Path:
    """A file of the repository, rewritten into the cache where another batch is asked for."""
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
    """Uniform in [0, 1): for networks whose weights are placeholders anyway."""
    return np.random.default_rng(seed).random((count, *shape), dtype=np.float32)


def light_network(file: Path) -> Network:
    (value,) = graph_inputs(onnx.load(file).graph)
    shape = tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim[1:])
    source, images = partial(light_file, file), partial(random_images, shape)
    return Network(file.stem, value.name, shape, source, images)


def repository_network(name: str, file: str, input_name: str, shape: tuple[int, ...]) -> Network:
    images, labelled = {
        "mnist": (samples.digits, samples.digits_labelled),
        "ppocr_cls": (samples.text_lines, samples.text_lines_labelled),
    }[name]
    source = partial(committed, samples.DATASETS / file, shape)
    return Network(name, input_name, shape, source, images, labelled)


def ppocr_networks() -> list[Network]:
    """Text recognition of a line, and text detection on a page."""
    line, sheet = (3, 48, 320), (3, samples.PAGE, samples.PAGE)
    read, find = (partial(ppocr.ppocr, name) for name in ("ppocr_rec", "ppocr_det"))
    return [
        Network("ppocr_rec", "x", line, read, samples.words, samples.words_labelled, ppocr.texts),
        Network("ppocr_det", "x", sheet, find, samples.pages, answers=ppocr.text_pixels),
    ]


def on_more_lines(network: Network) -> list[Network]:
    """A network of PP-OCR on more lines, and the same with logits for probabilities."""
    labelled = partial(lines.more_lines, network.name)
    more = replace(network, name=f"{network.name}_lines", labelled=labelled)
    source = partial(lines.logits_file, network.source)
    return [
        more,
        replace(more, name=f"{network.name}_logits", source=source, signal=lines.centred),
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
            samples.lite_photos_labelled,
        ),
    ]
    for topology in (networks.mobilenet_v2, networks.resnet50):
        source = partial(built, topology)
        table.append(Network(topology.__name__, "input", photo, source, samples.imagenet_photos))
    table += ppocr_networks()
    table.append(Network("minilm", "ids", (samples.TOKENS,), minilm, samples.passages))
    table += [made for n in table if n.name in lines.COUNTS for made in on_more_lines(n)]
    table += [light_network(file) for file in sorted(LIGHT.glob("*.onnx"))]
    return {network.name: network for network in table}


TABLE = ("mnist", "ppocr_cls", "efficientnet_lite0", "mobilenet_v2", "resnet50")


def network(name: str) -> Network:
    """The network called ``name``; ValueError lists the names there are."""
    found = registry().get(name)
    if found is None:
        raise ValueError(f"no benchmark network {name!r}; there are {', '.join(registry())}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.models")
    parser.add_argument("names", nargs="*", default=TABLE, metavar="NAME")
    parser.add_argument("--folder", type=Path, help="copy the files there as NAME.onnx")
    options = parser.parse_args()
    for name in options.names:
        chosen = network(name)
        path = chosen.path()
        if options.folder:
            options.folder.mkdir(parents=True, exist_ok=True)
            path = Path(shutil.copy(path, options.folder / f"{name}.onnx"))
        print(f"{name:20} {chosen.macs() / 1e6:9.1f} MMAC  {path}")


if __name__ == "__main__":
    main()
