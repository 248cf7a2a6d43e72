"""What pyproject.toml cannot say: ``datasets/`` is installed as data of the package."""

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

DATA = "quantglow._data"


class BuildPy(build_py):
    """The scripts that built the data stay in the repository."""

    def find_package_modules(self, package, package_dir):
        return [] if package == DATA else super().find_package_modules(package, package_dir)


setup(
    cmdclass={"build_py": BuildPy},
    packages=[*find_packages(include=["quantglow*"]), DATA],
    package_dir={DATA: "datasets"},
    package_data={
        "quantglow": ["py.typed"],
        DATA: [
            "README.md",
            "mnist_cnn.onnx",
            "mnist_test.npz",
            "ppocr_cls.onnx",
            "ocr_direction.npz",
        ],
    },
)
