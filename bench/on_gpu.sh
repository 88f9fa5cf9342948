#!/usr/bin/env bash
# Everything here that needs a GPU, in parts that each tell something.
#
#   bench/on_gpu.sh [--rehearse] [--seconds 480] [OUT_DIR] [PART ...]      OUT_DIR defaults to .gpu/results
#
#   first     about a minute: versions, a launch per kernel, 8 JPEGs, 4 batches per engine beside the CPU's, and whether
#             the pixels of a sample depend on its neighbours and next() on the device
#   tests     the GPU tests, a file at a time, the loader's first
#   bench     photos kernels decode training loader cache top1 plots: these can be named too
#
# All of them unless some are named. Each check is a process of its own with a limit: one that crashes or hangs is a line
# of OUT_DIR/summary.csv, and the next one runs. After --seconds what is left is left; called again, with the same OUT_DIR,
# what was ok and whose sources are the same is not run again. OUT_DIR/results.tar.gz has all rows, logs and JUnit files.
# Ends with 0 (all is well), 1 (something failed), 3 (call it again), 2 (wrong arguments).
#
# --rehearse runs it on the CPU as far as it goes: toy sizes, kernels compiled and not launched, tests collected.
#
# PYTHON names the interpreter (default: .venv/bin/python where it is there, else python3). The package is used as it
# stands, without being installed, so that a machine without a network can run this: put DALI and confluent-kafka on
# PYTHONPATH there, and name a folder of photographs in DALI_FEED_ORIGINALS where scikit-image and scikit-learn are
# missing (bench/_photos.py).
set -uo pipefail
cd "$(dirname "$0")/.."
bench="photos kernels decode training loader cache top1 plots"
known="first tests bench $bench"
device=cuda:0
seconds=480

is_part() { [[ " $known " == *" $1 "* ]]; }

while [[ "${1:-}" == --* ]]; do
    case $1 in
    --rehearse) device=cpu ;;
    --seconds)
        seconds=${2:-}
        [[ "$seconds" =~ ^[0-9]+$ ]] || { echo "on_gpu.sh: --seconds takes a whole number; found '$seconds'" >&2; exit 2; }
        shift
        ;;
    *) echo "on_gpu.sh: options are --rehearse and --seconds N; found $1" >&2; exit 2 ;;
    esac
    shift
done
out=.gpu/results
if [ $# -gt 0 ] && ! is_part "$1"; then
    out=$1
    shift
fi
for part in "$@"; do
    is_part "$part" || { echo "on_gpu.sh: parts are $known; found $part" >&2; exit 2; }
done
parts=()
for part in ${*:-first tests bench}; do
    if [ "$part" = bench ]; then parts+=($bench); else parts+=("$part"); fi
done
mkdir -p "$out"
out=$(realpath "$out")
python=${PYTHON:-$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python3)}

# A machine that the tree was only copied to has no loops in C yet; all works without them, slower.
if ! compgen -G 'dali_feed/native/_native*.so' >/dev/null && command -v cc >/dev/null; then
    "$python" -W ignore -c 'from setuptools import setup; setup()' -q build_ext --inplace >/dev/null 2>&1 ||
        echo "on_gpu.sh: going on without the loops in C" >&2
fi

# The root itself stays off the path, or `import kernels` would mean ours.
path=$(mktemp -d)
trap 'rm -r "$path"' EXIT
ln -s "$PWD/dali_feed" "$path/dali_feed"
export PYTHONPATH="$path${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1 XLA_PYTHON_CLIENT_PREALLOCATE=false

if [ "$device" = cpu ]; then
    echo "rehearsal: no GPU is used, and no figure of it is one of a GPU"
else
    export REQUIRE_GPU=1
    nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
    "$python" -P -c 'import cupy, torch, dali_feed; torch.cuda.get_device_name()' || {
        echo "on_gpu.sh: needs a GPU, torch and CuPy; nothing was run" >&2
        exit 1
    }
    "$python" -P -c 'import nvidia.dali' || echo "on_gpu.sh: without DALI only the kernels and the host engine can be run" >&2
fi
"$python" bench/on_gpu.py --device "$device" --seconds "$seconds" "$out" "${parts[@]}"
