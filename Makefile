PYTHON ?= python

.PHONY: check test bench fuzz conformance operators

check:
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy

test:
	$(PYTHON) -m pytest

bench:
	$(PYTHON) -m benchmarks latency --output benchmarks/results \
		--models mnist ppocr_cls efficientnet_lite0 mobilenet_v2 resnet50

conformance:
	$(PYTHON) -m benchmarks conformance

operators:
	$(PYTHON) -m benchmarks operators

fuzz:
	$(PYTHON) -m tests.fuzz graphs --seeds 0:100000 --minutes 30
	$(PYTHON) -m tests.fuzz files --seeds 0:100000 --minutes 15
