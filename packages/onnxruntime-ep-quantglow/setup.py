"""Build of the plug-in: a C library in a wheel for any Python 3."""

from __future__ import annotations

from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

FLAGS = ["-std=c11", "-D_GNU_SOURCE", "-O2", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror"]


class PlainLibrary(build_ext):
    """A library without Python's own functions, under a plain name."""

    def get_ext_filename(self, ext_name: str) -> str:
        return str(Path(*ext_name.split("."))) + ".so"

    def get_export_symbols(self, ext: Extension) -> list[str]:
        return []


class AnyPython(bdist_wheel):
    """A wheel of this platform that no version of Python has to match."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


setup(
    ext_modules=[
        Extension(
            "onnxruntime_ep_quantglow.libquantglow_ep",
            sorted(str(path) for path in Path("src").glob("*.c")),
            include_dirs=["vendor/onnxruntime"],
            depends=["src/quantglow_ep.h"],
            extra_compile_args=FLAGS,
            extra_link_args=["-s"],
            libraries=["dl"],
        )
    ],
    cmdclass={"build_ext": PlainLibrary, "bdist_wheel": AnyPython},
)
