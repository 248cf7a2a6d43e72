"""Build the ONNX files of benchmark networks into the cache and print their paths.

``python -m benchmarks.networks [NAME ...]``; ``--folder FOLDER`` also copies them there as
``NAME.onnx``, for the recipes of ``calibration/``.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from benchmarks.networks.registry import TABLE, network


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.networks", description=__doc__)
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
