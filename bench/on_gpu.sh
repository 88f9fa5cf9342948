#!/usr/bin/env bash
# Everything here that needs a GPU, in one go: the GPU tests, then the benches, whose rows go to a folder, and plots.
#
#   bench/on_gpu.sh [OUT_DIR] [PART ...]      run from the root of the repository; OUT_DIR defaults to bench/results
#
# Parts: tests kernels decode training loader plots; all of them unless some are named. PYTHON names the interpreter
# (default: .venv/bin/python where it is there, else python3). The package is used as it stands, without being installed,
# so that a machine without a network can run this: put DALI and confluent-kafka on PYTHONPATH there, and name a folder of
# photographs in DALI_FEED_ORIGINALS where scikit-image and scikit-learn are missing (bench/_photos.py).
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
[ $# -gt 0 ] && shift
parts=${*:-tests kernels decode training loader plots}
for part in $parts; do
    begun=$SECONDS
    case $part in
    tests) "$python" -P -m pytest -m gpu -q tests ;;
    kernels) "$python" bench/bench_kernels.py --results "$out" ;;
    decode) "$python" bench/bench_decode.py --seconds 2 --results "$out" ;;
    training) "$python" bench/bench_training.py --steps 100 --results "$out" ;;
    loader)
        "$python" bench/bench_loader.py --device cuda:0 --sources tar --batches 256 --repeats 3 --seconds 4 \
            --workers "$(nproc)" --results "$out"
        ;;
    plots) "$python" bench/plot.py --results "$out" ;;
    *) echo "on_gpu.sh: no part is called $part" >&2; false ;;
    esac || rc=$?
    echo "== $part: $((SECONDS - begun)) s, status so far $rc"
done
exit "$rc"
