"""What pyproject.toml cannot say: ``datasets/`` is installed as data of the package."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["quantglow*"]), "quantglow._data"],
    package_dir={"quantglow._data": "datasets"},
    package_data={
        "quantglow": ["py.typed"],
        "quantglow._data": [
            "README.md",
            "mnist_cnn.onnx",
            "mnist_test.npz",
            "ppocr_cls.onnx",
            "ocr_direction.npz",
        ],
    },
)
