"""What a user gets: the wheel's size, what it needs and exports, and what importing it costs.

usage: check_package.py WHEEL EXTENSION    with the wheel installed in the running environment

EXTENSION is the compiled module of a build without CUDA, which the wheel has.
"""

import re
import statistics
import struct
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

MOST_BYTES = 10_000_000
MOST_IMPORT_MS = 50.0
REQUIREMENTS = {"numpy", "safetensors"}
# What every glibc system has; libgcc_s is shared because a thread may be unwound through our frames
# and Python's.
LIBRARIES = {
    "libc.so.6",
    "libm.so.6",
    "libpthread.so.0",
    "libdl.so.2",
    "librt.so.1",
    "libgcc_s.so.1",
}
# What the CUDA half has code for: machine code, and PTX for later GPUs.
GPU_CODE = {"sm_80", "sm_90", "compute_90"}
# Loaded when they are used, never by importing fusednn.
HEAVY = ("torch", "onnx", "onnxruntime", "sklearn", "scipy", "matplotlib", "tqdm", "cupy", "jax")


def output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def requirements(wheel: zipfile.ZipFile) -> set[str]:
    """Names of the packages that the wheel needs without any extra."""
    (name,) = (n for n in wheel.namelist() if n.endswith(".dist-info/METADATA"))
    lines = re.findall(r"^Requires-Dist: ([\w.-]+)(.*)$", wheel.read(name).decode(), re.MULTILINE)
    return {package.lower() for package, rest in lines if "extra ==" not in rest}


def linked(extension: Path) -> tuple[set[str], set[str]]:
    """The libraries an extension loads, and the symbols it exports."""
    needed = set(re.findall(r"NEEDED.*\[(.+)\]", output("readelf", "-d", str(extension))))
    symbols = output("nm", "-D", "--defined-only", "--format=posix", str(extension))
    return needed, {line.split()[0] for line in symbols.splitlines()}


def gpu_code(extension: Path) -> set[str]:
    """Architectures of the code for GPUs, as nvcc's fat binaries name them.

    Each begins with a magic number, its header's size and its own; then come entries with their
    kind (1: PTX, 2: machine code), header's size, size and, at byte 28, the architecture.
    """
    section = re.search(
        r"\.nv_fatbin\s+PROGBITS\s+\w+\s+(\w+)\s+(\w+)", output("readelf", "-SW", str(extension))
    )
    if not section:
        return set()
    start, size = (int(number, 16) for number in section.groups())
    code = extension.read_bytes()[start : start + size]
    found = set()
    at = 0
    while at + 16 <= len(code):
        magic, _, header, size = struct.unpack_from("<IHHQ", code, at)
        if magic != 0xBA55ED50:
            at += 8  # padding
            continue
        at, end = at + header, at + header + size
        while at < end:
            kind, _, header, size = struct.unpack_from("<HHIQ", code, at)
            (architecture,) = struct.unpack_from("<I", code, at + 28)
            found.add(f"{'compute' if kind == 1 else 'sm'}_{architecture}")
            at += header + size
    return found


def extension_complaints(name: str, extension: Path, cuda: bool) -> list[str]:
    found = []
    libraries, symbols = linked(extension)
    print(f"{name}: {extension.stat().st_size / 1e6:.2f} MB")
    print(f"{name} loads {', '.join(sorted(libraries))}")
    print(f"{name} exports {', '.join(sorted(symbols))}")
    # No CUDA library either: its run time is inside, the driver is looked for when it is needed.
    strange = {lib for lib in libraries - LIBRARIES if not lib.startswith("ld-linux")}
    if strange:
        found.append(f"{name} loads {sorted(strange)}")
    foreign = {s for s in symbols if not s.startswith(("PyInit_", "fusednn_"))}
    if foreign:
        found.append(f"{name} exports {sorted(foreign)[:5]}")
    expected, code = GPU_CODE if cuda else set(), gpu_code(extension)
    print(f"{name} has code for GPUs: {', '.join(sorted(code)) or 'none'}")
    if code != expected:
        found.append(f"{name} has GPU code {sorted(code)}, expected {sorted(expected)}")
    return found


def import_ms(rounds: int = 11) -> float:
    """Milliseconds that `import fusednn` takes on top of NumPy: the median of fresh processes."""
    code = (
        "import time, numpy; start = time.perf_counter(); import fusednn; "
        "print(1e3 * (time.perf_counter() - start))"
    )
    return statistics.median(float(output(sys.executable, "-c", code)) for _ in range(rounds))


def eager() -> list[str]:
    code = f"import sys, fusednn; print(*[m for m in {HEAVY!r} if m in sys.modules])"
    return output(sys.executable, "-c", code).split()


def complaints(path: Path, without_cuda: Path) -> list[str]:
    found = []
    size = path.stat().st_size
    print(f"{path.name}: {size / 1e6:.2f} MB")
    if size > MOST_BYTES:
        found.append(f"larger than {MOST_BYTES / 1e6:g} MB")
    with zipfile.ZipFile(path) as wheel, tempfile.TemporaryDirectory() as folder:
        needs = requirements(wheel)
        print(f"requires {', '.join(sorted(needs))}")
        if needs != REQUIREMENTS:
            found.append(f"requires {sorted(needs)}, expected {sorted(REQUIREMENTS)}")
        for name in wheel.namelist():
            if not name.endswith(".so"):
                continue
            found += extension_complaints(name, Path(wheel.extract(name, folder)), cuda=True)
    found += extension_complaints("the build without CUDA", without_cuda, cuda=False)
    cost = import_ms()
    print(f"import: {cost:.0f} ms over NumPy")
    if cost > MOST_IMPORT_MS:
        found.append(f"import takes {cost:.0f} ms over NumPy, at most {MOST_IMPORT_MS:g} allowed")
    if loaded := eager():
        found.append(f"import loads {loaded}")
    return found


def main() -> int:
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    found = complaints(Path(sys.argv[1]), Path(sys.argv[2]))
    for line in found:
        print(f"PACKAGE: {line}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
