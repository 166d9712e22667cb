#!/usr/bin/env bash
# Everything that only a GPU can show, in one run of at most eight minutes: builds fusednn with CUDA,
# runs the tests of tests/cuda on the device (probes of single instructions among them, whose bits the
# emulators have too), the compute sanitizer where it is installed, and the benchmark beside PyTorch.
#
# usage: bench/gpu_check.sh [--dry-run]     --dry-run: says what it would do, and whether it could
#
# Needs nvcc of CUDA 13, g++, a GPU, and a Python (PYTHON, default python3) with NumPy, pytest,
# Hypothesis, CuPy, pybind11, CMake, Ninja; PyTorch if it is to be compared with. Nothing is
# downloaded. Results: bench/results/gpu-DATE.json, and beside it what each step said. OUT=FOLDER puts
# them elsewhere, BUILD=FOLDER the build, MINUTES=N sets the limit.
set -Eeuo pipefail

repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
python=${PYTHON:-python3}
out=${OUT:-$repo/bench/results}
build=${BUILD:-$repo/build/gpu}
limit=$((${MINUTES:-8} * 60))
dry=
case "${1:-}" in
  --dry-run) dry=1 ;;
  "") ;;
  *)
    sed -n '2,/^set/p' "${BASH_SOURCE[0]}" | sed '$d; s/^# \{0,1\}//' >&2
    exit 2
    ;;
esac

missing=()
command -v nvcc >/dev/null || [ -n "${CUDACXX:-}" ] || missing+=("nvcc (CUDA 13)")
command -v g++ >/dev/null || missing+=("g++")
for module in numpy pytest hypothesis cupy pybind11; do
  "$python" -c "import importlib.util, sys; sys.exit(not importlib.util.find_spec('$module'))" ||
    missing+=("Python's $module")
done
for program in cmake ninja; do
  command -v "$program" >/dev/null || missing+=("$program")
done
if ! nvidia-smi -L >/dev/null 2>&1; then missing+=("a GPU (nvidia-smi finds none)"); fi

# run NAME SECONDS COMMAND...: a step with a limit of its own, cut to what is left of the whole; its
# output goes to a file, its end to the terminal. A failure is counted and does not stop the rest.
failed=()
run() {
  local name=$1 seconds=$2 left=$((limit - SECONDS)) status=0 start=$SECONDS
  shift 2
  if [ -n "$dry" ]; then
    printf -- '-- %s (at most %s s): %s\n' "$name" "$seconds" "$*"
    return 0
  fi
  if [ "$left" -lt 10 ]; then
    echo "-- $name: left out, the $((limit / 60)) minutes are over"
    failed+=("$name (no time)")
    return 0
  fi
  timeout $((seconds < left ? seconds : left)) "$@" >"$out/$name.txt" 2>&1 || status=$?
  echo "-- $name: $((SECONDS - start)) s, status $status"
  if [ "$status" -ne 0 ]; then
    failed+=("$name")
    tail -n 25 "$out/$name.txt"
  fi
}

build_extension() {
  # One architecture, the device's own: the rest is for others' machines.
  local capability
  capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -n 1 | tr -d .)
  cmake -S "$repo" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DFUSEDNN_CUDA=ON \
    -DCMAKE_CUDA_ARCHITECTURES="$capability-real" -DPython_EXECUTABLE="$(command -v "$python")" \
    -Dpybind11_DIR="$("$python" -m pybind11 --cmakedir)" -DSKBUILD_PROJECT_VERSION_FULL=0.0.0
  cmake --build "$build" --target _core
  mkdir -p "$build/package/fusednn"
  find "$repo/python/fusednn" -mindepth 1 -maxdepth 1 ! -name '_core*.so' \
    -exec ln -sfn -t "$build/package/fusednn" {} +
  ln -sfn -t "$build/package/fusednn" "$build"/_core*.so
  # The kernels of the tests alone, with what launches them.
  "${CUDACXX:-nvcc}" -std=c++17 -O3 -gencode="arch=compute_$capability,code=sm_$capability" \
    -I"$repo/csrc" -I"$repo/tests/cuda" -shared -Xcompiler=-fPIC -cudart=static \
    -o "$build/libtest_kernels.so" "$repo"/tests/cuda/kernels/*.cu "$repo"/csrc/cuda/device.cu \
    "$repo"/csrc/cuda/memory.cu
}
export -f build_extension
export repo build python

if [ -z "$dry" ]; then
  if [ ${#missing[@]} -gt 0 ]; then
    printf 'gpu_check: missing here: %s\n' "$(IFS=,; echo "${missing[*]}")" >&2
    exit 1
  fi
  mkdir -p "$out"
fi

export PYTHONPATH=$build/package PYTHONDONTWRITEBYTECODE=1
export FUSEDNN_TEST_KERNELS=$build/libtest_kernels.so
tests=$repo/tests/cuda
json=$out/gpu-$(date -u +%Y%m%d-%H%M%S).json

run build 240 bash -c build_extension
run probes 60 "$python" "$tests/run" device -- "$tests/test_probes.py" "$tests/test_patterns.py"
run tests 150 "$python" "$tests/run" device
# Its tools slow a kernel down by ten to a hundred times: a subset, and of each file the small cases.
sanitizer=$(command -v compute-sanitizer || true)
if [ -n "$sanitizer" ] || [ -n "$dry" ]; then
  for tool in memcheck racecheck; do
    run "$tool" 60 "${sanitizer:-compute-sanitizer}" --tool "$tool" --error-exitcode 9 \
      --target-processes all "$python" "$tests/run" device -- "$tests/test_patterns.py" \
      "$tests/test_pool_kernels.py" -x
  done
else
  echo "-- memcheck, racecheck: left out, compute-sanitizer is not installed"
fi
run bench 180 "$python" -m fusednn bench --device cuda --peers torch --budget 0.3 --json "$json"

if [ -n "$dry" ]; then
  if [ ${#missing[@]} -gt 0 ]; then
    printf 'missing here: %s\n' "$(IFS=,; echo "${missing[*]}")"
  fi
  exit 0
fi
if [ ${#failed[@]} -gt 0 ]; then
  printf 'gpu_check FAILED: %s (%s s)\n' "$(IFS=,; echo "${failed[*]}")" "$SECONDS" >&2
  exit 1
fi
echo "gpu_check passed in $SECONDS s: $json"
