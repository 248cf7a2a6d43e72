# Sourced by the scripts: a folder that goes away at the end, and a virtual environment in it.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
export PATH="$folder/venv/bin:$PATH"
cd "$folder"
