PYTHON ?= python
QUICK = not slow and not emulated and not frameworks and not browser

.PHONY: check test test-quick test-all test-fresh test-frameworks test-benchmarks test-serving ways nightly bench fuzz stress
.PHONY: conformance operators options accuracy-functions docs
.PHONY: browser-setup browser-test browser-speed
.PHONY: cross-setup test-cross test-cross-quick test-arm-userland fuzz-arm
.PHONY: test-arm test-cortex-m test-riscv test-wasm

check:
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy

test:
	$(PYTHON) -m pytest

test-quick:
	$(PYTHON) -m pytest -m quick

test-all:
	$(PYTHON) -m pytest -m "not emulated and not frameworks and not browser"

test-frameworks:
	$(PYTHON) -m pytest --no-skips -m "" tests/frameworks

test-benchmarks:
	$(PYTHON) -m pytest benchmarks/tests

test-fresh:
	for run in 1 2 3 4 5 6 7 8 9 10; do HYPOTHESIS_PROFILE=fresh $(PYTHON) -m pytest -m "hypothesis and $(QUICK)" || exit 1; done

nightly:
	HYPOTHESIS_PROFILE=nightly $(PYTHON) -m pytest -m ""

browser-setup:
	$(PYTHON) -m tools.browser_setup

browser-test:
	$(PYTHON) -m pytest -n 0 --no-skips -m browser tests/browser

browser-speed:
	$(PYTHON) -m tools.page_speed

cross-setup:
	$(PYTHON) -m tools.cross_setup

test-arm test-cortex-m test-riscv test-wasm:
	QUANTGLOW_AS=$(@:test-%=%) $(PYTHON) -m pytest -p tests.matrix.as_other tests/matrix

test-cross-quick:
	$(PYTHON) -m pytest --no-skips -m "emulated and not slow" tests/cross

test-cross:
	$(PYTHON) -m pytest --no-skips -m "" tests/cross

test-arm-userland:
	$(PYTHON) -m tests.cross.emulated

fuzz-arm:
	$(PYTHON) -m tests.fuzz.jit --seeds 0:10000

bench:
	$(PYTHON) -m benchmarks latency --output benchmarks/results \
		--models mnist ppocr_cls efficientnet_lite0 mobilenet_v2 resnet50

conformance:
	$(PYTHON) -m tools conformance --num-threads 1 2 4

operators:
	$(PYTHON) -m tools operators

options:
	$(PYTHON) -m tools options

accuracy-functions:
	$(PYTHON) -m tools function_accuracy

fuzz:
	$(PYTHON) -m tests.fuzz graphs --seeds 0:100000 --minutes 30
	$(PYTHON) -m tests.fuzz exports --seeds 0:100000 --minutes 15
	$(PYTHON) -m tests.fuzz plugged --seeds 0:100000 --minutes 15
	$(PYTHON) -m tests.fuzz files --seeds 0:100000 --minutes 15
	$(PYTHON) -m tests.fuzz saved --seeds 0:100000 --minutes 15
	$(PYTHON) -m tests.fuzz texts --seeds 0:100000 --minutes 30

stress:
	$(PYTHON) -m tests.stress leaks --seconds 300
	$(PYTHON) -m tests.stress forks --seconds 60
	$(PYTHON) -m tests.stress threads --seconds 60

docs:
	NO_MKDOCS_2_WARNING=1 $(PYTHON) -m mkdocs build

test-serving:
	$(PYTHON) -m venv build/serving
	build/serving/bin/pip install -q . -r examples/serving/requirements.txt
	build/serving/bin/python examples/serving/load_test.py build/serving/models --seconds 3

ways: way-command_line way-contribute way-jupyterlab way-pytorch_to_server

way-%:
	tests/ways/$*.sh
