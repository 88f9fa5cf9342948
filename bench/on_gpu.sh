#!/usr/bin/env bash
# Everything here that needs a GPU, in one go: the GPU tests, then the benches, whose rows go to a folder.
#
#   bench/on_gpu.sh [OUT_DIR]       run from the root of the repository; OUT_DIR defaults to bench/results
#
# PYTHON names the interpreter (default: .venv/bin/python where it is there, else python3). The package is
# used as it stands, without being installed, so that a machine without a network can run this: put DALI and
# confluent-kafka on PYTHONPATH there.
set -uo pipefail
cd "$(dirname "$0")/.."
out=$(realpath -m "${1:-bench/results}")
python=${PYTHON:-$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python3)}
mkdir -p "$out"
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" REQUIRE_GPU=1

nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader || { echo "no GPU: nvidia-smi does not answer" >&2; exit 1; }
"$python" - <<'PY'
import cupy, torch, nvidia.dali
print("torch", torch.__version__, "cupy", cupy.__version__, "dali", nvidia.dali.__version__, torch.cuda.get_device_name())
PY

rc=0
cores=$(nproc)
"$python" -P -m pytest -m gpu -q tests || rc=$?
"$python" bench/bench_kernels.py --results "$out" || rc=$?
"$python" bench/bench_decode.py --results "$out" || rc=$?
"$python" bench/bench_training.py --results "$out" || rc=$?
"$python" bench/bench_loader.py --device cuda:0 --sources tar --batches 256 --repeats 3 --workers "$cores" --results "$out" || rc=$?
exit "$rc"
