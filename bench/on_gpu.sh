#!/usr/bin/env bash
# Everything here that needs a GPU, in one go: the GPU tests, then the benches, whose rows go to a folder, and plots.
#
#   bench/on_gpu.sh [OUT_DIR] [PART ...]      OUT_DIR defaults to bench/results
#
# Parts: tests kernels decode training loader top1 plots; all of them unless some are named. PYTHON names the interpreter
# (default: .venv/bin/python where it is there, else python3). The package is used as it stands, without being installed,
# so that a machine without a network can run this: put DALI and confluent-kafka on PYTHONPATH there, and name a folder of
# photographs in DALI_FEED_ORIGINALS where scikit-image and scikit-learn are missing (bench/_photos.py).
set -uo pipefail
cd "$(dirname "$0")/.."
all="tests kernels decode training loader top1 plots"

is_part() { [[ " $all " == *" $1 "* ]]; }

out=bench/results
if [ $# -gt 0 ] && ! is_part "$1"; then
    out=$1
    shift
fi
for part in "$@"; do
    is_part "$part" || { echo "on_gpu.sh: parts are $all; found $part" >&2; exit 2; }
done
mkdir -p "$out"
out=$(realpath "$out")
python=${PYTHON:-$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python3)}

# The root itself stays off the path, or `import kernels` would mean ours.
path=$(mktemp -d)
trap 'rm -r "$path"' EXIT
ln -s "$PWD/dali_feed" "$path/dali_feed"
export PYTHONPATH="$path${PYTHONPATH:+:$PYTHONPATH}" REQUIRE_GPU=1

nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
"$python" -P - <<'PY' || { echo "on_gpu.sh: needs a GPU, torch, CuPy and DALI; nothing was run" >&2; exit 1; }
import cupy, torch, nvidia.dali, dali_feed
print("torch", torch.__version__, "cupy", cupy.__version__, "dali", nvidia.dali.__version__, torch.cuda.get_device_name())
PY

# Only the files with GPU tests: the others may import packages that are not here.
gpu_tests=$(grep -lE 'mark\.gpu|both_ways' tests/test_*.py)
rc=0
for part in ${*:-$all}; do
    begun=$SECONDS
    case $part in
    tests) "$python" -P -m pytest -m gpu -q $gpu_tests ;;
    kernels) "$python" bench/bench_kernels.py --results "$out" ;;
    decode) "$python" bench/bench_decode.py --seconds 2 --results "$out" ;;
    training) "$python" bench/bench_training.py --steps 100 --results "$out" ;;
    loader)
        "$python" bench/bench_loader.py --device cuda:0 --sources tar --batches 256 --repeats 3 --seconds 4 \
            --workers "$(nproc)" --results "$out"
        ;;
    top1) "$python" bench/measure_top1.py --results "$out" ;;
    plots) "$python" bench/plot.py --results "$out" ;;
    esac || rc=$?
    echo "== $part: $((SECONDS - begun)) s, status so far $rc"
done
exit "$rc"
