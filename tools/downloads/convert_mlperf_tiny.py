"""Make the networks of ``mlperf_tiny`` of a clone of their repository.

``python -m tools.downloads.convert_mlperf_tiny CLONE`` converts TFLite files to float ONNX models
in the model cache, and compares each with LiteRT.  Needs ``pip install tflite ai-edge-litert``.
"""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from ai_edge_litert.interpreter import Interpreter

import quantglow
from tools.downloads.mlperf_tiny import SOURCES, file_name, int8_name, samples
from tools.downloads.model_cache import cached
from tools.downloads.tflite_graph import converted

SAMPLES, INT8_SAMPLES = 16, 40


def convert(task: str, clone: Path) -> Path:
    """Convert a network.  Raises ``ValueError`` if it differs from LiteRT."""
    source = SOURCES[task]
    data = checked(clone, source.path, source.sha256)

    def build(path: Path) -> None:
        model = converted(data)
        actual = deviation(task, data, model)
        print(f"{task}: differs from LiteRT by {actual:.1e} of the largest output")
        if actual > source.deviation:
            raise ValueError(f"{task}: that is more than {source.deviation}")
        onnx.save(model, path)

    return cached(file_name(task), build)


def checked(clone: Path, path: str, sha256: str) -> bytes:
    """The bytes of a file of the clone.  Raises ``ValueError`` for other ones."""
    data = (clone / "benchmark" / "training" / path).read_bytes()
    if hashlib.sha256(data).hexdigest() != sha256:
        raise ValueError(f"{path} is not the file with SHA-256 {sha256}")
    return data


def keep_int8(task: str, clone: Path) -> Path:
    """Keep the int8 file of a network as it is, and compare its outputs with LiteRT's."""
    data = checked(clone, *SOURCES[task].int8)
    count, size, most = int8_steps(task, data)
    print(f"{task}, int8: {count} of {size} outputs differ from LiteRT's, by {most} steps at most")

    def build(path: Path) -> None:
        path.write_bytes(data)

    return cached(int8_name(task), build)


def deviation(task: str, data: bytes, model: onnx.ModelProto) -> float:
    """Largest difference of outputs from LiteRT, as a share of the largest output."""
    judge = Interpreter(model_content=data)
    judge.allocate_tensors()
    (inputs,), (result,) = judge.get_input_details(), judge.get_output_details()
    content, providers = model.SerializeToString(), ["CPUExecutionProvider"]
    session = onnxruntime.InferenceSession(content, providers=providers)
    differences, largest = [0.0], 0.0
    for sample in samples(task, SAMPLES):
        judge.set_tensor(inputs["index"], sample)
        judge.invoke()
        expected = judge.get_tensor(result["index"])
        (actual,) = session.run(None, {session.get_inputs()[0].name: sample})
        differences.append(float(np.abs(actual - expected).max()))
        largest = max(largest, float(np.abs(expected).max()))
    return max(differences) / largest


def int8_steps(task: str, data: bytes) -> tuple[int, int, int]:
    """Outputs of the int8 network that differ from LiteRT's, all outputs, most steps."""
    judge, compiled = Interpreter(model_content=data), quantglow.compile(data)
    judge.allocate_tensors()
    (inputs,), (result,) = judge.get_input_details(), judge.get_output_details()
    scale, zero = inputs["quantization"]
    apart = []
    for sample in samples(task, INT8_SAMPLES):
        stored = np.clip(np.rint(sample / scale) + zero, -128, 127).astype(np.int8)
        judge.set_tensor(inputs["index"], stored)
        judge.invoke()
        expected = judge.get_tensor(result["index"]).astype(np.int32)
        apart.append(np.abs(np.asarray(compiled(stored), np.int32) - expected))
    steps = np.concatenate(apart)
    return int((steps > 0).sum()), steps.size, int(steps.max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("clone", type=Path, help="a clone of github.com/mlcommons/tiny")
    clone = parser.parse_args().clone
    for task in SOURCES:
        path = convert(task, clone)
        for kept in (path, keep_int8(task, clone)):
            print(f"{kept} ({kept.stat().st_size:,} bytes)")


if __name__ == "__main__":
    main()
