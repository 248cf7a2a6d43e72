#!/usr/bin/env bash
# A notebook in JupyterLab: Chromium opens it, runs all cells and looks at the outputs.
source "$(dirname "$0")/environment.sh"
pip install -q "$root[notebooks]"
(cd "$root" && python -m tools.browser_setup)
cp -r "$root/notebooks" "$root/datasets" .
PYTHONPATH="$root" python "$root/tests/ways/jupyterlab.py" notebooks 01_calibrate_compile_check.ipynb
