#!/usr/bin/env bash
# The first hour of a contributor: a clone, the checks, one file of tests, one test, a golden text.
source "$(dirname "$0")/environment.sh"
git clone -q "$root" quantglow
cd quantglow
pip install -q -e ".[dev]"
make check
pytest -n 0 tests/unit/transforms/float/test_fold_batch_norm.py
pytest -n 0 tests/unit/transforms/float -k stays
pytest tests/golden --update-golden
git diff --exit-code tests/golden
