#!/usr/bin/env bash
# From a PyTorch module to a model on a server.
source "$(dirname "$0")/environment.sh"
pip install -q "$root[torch]" -r "$root/examples/serving/requirements.txt"
PYTHONPATH="$root:$root/examples/serving" python "$root/tests/ways/pytorch_to_server.py" models
