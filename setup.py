"""Installation of ``datasets/`` as data of the package, which pyproject.toml cannot express."""

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py
from setuptools.command.editable_wheel import editable_wheel

DATA = "quantglow._data"


class BuildPy(build_py):
    """Leaves the scripts that built the data in the repository."""

    def find_package_modules(self, package, package_dir):
        return [] if package == DATA else super().find_package_modules(package, package_dir)


class EditableWheel(editable_wheel):
    """Installs a plain ``.pth`` file, without the data, which are read from ``datasets/``.

    Type checkers follow a ``.pth`` file; they do not run the import hook that setuptools writes for
    packages in other folders.
    """

    def finalize_options(self):
        self.distribution.packages.remove(DATA)
        self.distribution.package_dir = {"": "."}
        super().finalize_options()


setup(
    cmdclass={"build_py": BuildPy, "editable_wheel": EditableWheel},
    packages=[*find_packages(include=["quantglow*"]), DATA],
    package_dir={DATA: "datasets"},
    package_data={
        "quantglow": [
            "py.typed",
            "codegen/llvm/scheduler/*.ll",
            "export/bundle/module.mjs",
            "export/bundle/pool.c",
            "export/bundle/pool.h",
            "report/assets/*.*",
            "report/vendor/*",
        ],
        DATA: [
            "README.md",
            "mnist_cnn.onnx",
            "mnist_test.npz",
            "ppocr_cls.onnx",
            "ocr_direction.npz",
        ],
    },
)
