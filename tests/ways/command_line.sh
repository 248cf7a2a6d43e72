#!/usr/bin/env bash
# The demo, then from an ONNX file to a C program on the command line only.
source "$(dirname "$0")/environment.sh"
pip install -q "$root"
quantglow demo

cp "$root/datasets/ppocr_cls.onnx" model.onnx
python - <<'END'
import numpy as np
from quantglow.cli.demo import ocr_direction

lines = ocr_direction().calibration
np.savez("samples.npz", x=lines)
np.savez("one.npz", x=lines[:1])
END

quantglow quantize model.onnx --calibration-data samples.npz --output model.qgm
quantglow run model.qgm --inputs one.npz --output result.npz
quantglow bench model.qgm
quantglow inspect model.qgm --stage memory --output map.svg
quantglow debug model.onnx --calibration-data samples.npz --output page.html >layers.txt
quantglow bundle model.onnx --calibration-data samples.npz --target x86-64:all --name lines --output lines
gcc -O2 lines/main.c lines/lines*.o -o program
./program
test -s map.svg -a -s page.html -a -s layers.txt

python - <<'END'
import numpy as np
import onnxruntime as ort

wanted = ort.InferenceSession("model.onnx").run(None, dict(np.load("one.npz")))[0]
(name,) = np.load("result.npz").files
found = np.load("result.npz")[name]
assert found.argmax() == wanted.argmax() and abs(found - wanted).max() < 0.05, (found, wanted)
print("The answer is that of onnxruntime in float.")
END
