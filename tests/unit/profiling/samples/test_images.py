"""Folders of images, and their preprocessing."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from PIL import Image

import quantglow as qg
from quantglow import steps
from quantglow.cli.main import main
from quantglow.profiling.samples import ImageFolder
from quantglow.profiling.samples.images import preprocessing
from tests.support.small_network import small_model


def drawn(seed: int, size: tuple[int, int]) -> np.ndarray:
    """An image of some width and height, [height, width, 3]."""
    shape = (size[1], size[0], 3)
    return np.random.default_rng(seed).integers(0, 256, shape).astype(np.uint8)


def save(path: Path, seed: int = 0) -> None:
    path.parent.mkdir(exist_ok=True, parents=True)
    Image.fromarray(drawn(seed, (40, 30))).save(path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for index in range(6):
        save(tmp_path / "images" / "cb"[index % 2] / f"{index}.png", index)
    return tmp_path / "images"


def test_images_come_in_the_order_of_their_names(folder: Path) -> None:
    actual = ImageFolder(folder, "none", labels=True)
    assert (len(actual), actual.classes) == (6, ["b", "c"])
    files = ["b/1.png", "b/3.png", "b/5.png", "c/0.png", "c/2.png", "c/4.png"]
    assert [item.place for item in actual] == [repr(file) for file in files]
    assert [item.labels for item in actual] == [0, 0, 0, 1, 1, 1]
    assert [item.values.shape for item in actual] == [(1, 30, 40, 3)] * 6


@pytest.mark.parametrize("name", ["imagenet", "inception", "crop"])
@pytest.mark.parametrize("size", [(40, 30), (30, 40), (300, 200)])
def test_preprocessing_is_that_of_its_framework(name: str, size: tuple[int, int]) -> None:
    image = Image.fromarray(
        np.random.default_rng(1).integers(0, 256, (size[1], size[0], 3)).astype(np.uint8)
    )
    crop = preprocessing("preprocess", "crop:28")(image)
    actual = preprocessing("preprocess", f"{name}:28")(image)
    scale = 32 / min(size)
    resized = image.resize(
        (round(size[0] * scale), round(size[1] * scale)), Image.Resampling.BILINEAR
    )
    left, top = (resized.width - 28) // 2, (resized.height - 28) // 2
    x = np.asarray(resized)[top : top + 28, left : left + 28][None]
    np.testing.assert_array_equal(crop, x)
    planes = x.transpose(0, 3, 1, 2).astype(np.float64)
    mean, std = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    expected = {
        "crop": x,
        "imagenet": (planes / 255 - mean[:, None, None]) / std[:, None, None],
        "inception": planes / 127.5 - 1,
    }[name]
    np.testing.assert_allclose(actual, expected, atol=1e-5)


def test_functions_of_modules_are_found_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_steps.py").write_text("def double(image):\n    return image.width * 2\n")
    monkeypatch.chdir(tmp_path)
    image = Image.new("RGB", (3, 2))
    assert preprocessing("preprocess", "own_steps:double")(image) == 6
    assert str(tmp_path) not in sys.path


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (None, "is missing or no text"),
        ("imagnet", "'imagnet' is unknown"),
        ("imagenet:0", "no side of pixels"),
        ("no_such_module:f", "cannot load 'f' of module 'no_such_module': ModuleNotFoundError"),
        ("math:tau", "math:tau is no function"),
    ],
)
def test_unknown_preprocessing_is_refused(inputs: Any, message: str) -> None:
    with pytest.raises(qg.OptionError, match=f"{message}.*Remedy"):
        preprocessing("preprocess", inputs)


def test_damaged_images_are_named(folder: Path) -> None:
    content = (folder / "b" / "1.png").read_bytes()
    (folder / "b" / "1.png").write_bytes(content[: len(content) // 2])
    with pytest.raises(qg.CalibrationError, match=r"cannot read the image.*1\.png'.*Remedy"):
        list(ImageFolder(folder, "none"))


def test_an_image_of_too_many_pixels_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quantglow.profiling.samples.images.MAX_PIXELS", 1000)
    with pytest.raises(qg.CalibrationError, match="40 x 30 are more than 1000 pixels"):
        list(ImageFolder(folder, "none"))


def test_a_function_that_raises_names_the_image(folder: Path) -> None:
    def fails(image: Any) -> Any:
        raise LookupError("no such colour")

    with pytest.raises(qg.CalibrationError, match=r"fails on 'b/1\.png': LookupError: no such"):
        list(ImageFolder(folder, fails))


@pytest.mark.parametrize("path", ["missing", "empty"])
def test_folders_without_images_are_refused(tmp_path: Path, path: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(qg.CalibrationError, match=f"{path}.*Remedy"):
        ImageFolder(tmp_path / path, "none")


def test_labels_need_subfolders(tmp_path: Path) -> None:
    save(tmp_path / "a.png")
    with pytest.raises(qg.CalibrationError, match="lies in no subfolder"):
        ImageFolder(tmp_path, "none", labels=True)


def test_a_missing_pillow_names_its_extra(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(qg.CalibrationError, match=r"pip install 'quantglow\[images\]'"):
        list(ImageFolder(folder, "none"))


def test_a_model_is_quantized_on_a_folder_of_images(folder: Path) -> None:
    before = [steps.ElementType("uint8"), steps.Layout("NHWC"), steps.Resize(6, 6)]
    compiled = qg.quantize_and_compile(
        small_model(channels=3),
        ImageFolder(folder, "none"),
        validation_data=ImageFolder(folder, "none", labels=True),
        num_threads=1,
        progress=False,
        before=before,
    )
    assert compiled.report.right.labels == 6


def test_the_command_line_reads_folders(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder.parent)
    onnx.save(small_model(channels=3), "net.onnx")
    line = (
        "quantize net.onnx --calibration-data images --validation-data images --no-measure-latency"
    )
    line += " --num-threads 1 --output net.qgm"
    assert main([*line.split(), "--preprocess", "imagenet:6"]) == 0
    assert "of 6 labels" in " ".join(capsys.readouterr().out.split())
    assert main(line.split()) == 1
    assert "or --preprocess" in " ".join(capsys.readouterr().err.split())
