"""Nothing of one ISA build may reach another: checked on the objects of a build directory.

usage: check_isa_symbols.py BUILD_DIRECTORY

1. Every symbol that an object of fusednn_cpu_<isa> defines for others, weak ones included, stands
   in namespace fusednn::<isa>. The linker keeps one copy of equal names, so a shared inline
   function could bring AVX-512 code into the baseline.
2. No object outside the avx2 and avx512 builds uses AVX instructions (x86-64 only).
"""

import os
import re
import subprocess
import sys
from pathlib import Path

FOLDER = re.compile(r"fusednn_cpu_(\w+)\.dir$")
NEEDS_AVX = {"avx2", "avx512"}
# What nm calls global or weak and defined; lower case is local to the object, but for u, v and w.
SHARED = set("ABCDGRSTVWiu")
# The exception tables' reference to the runtime's own function: data, the same in every build.
HARMLESS = {"DW.ref.__gxx_personality_v0"}
# Of everything in AT&T syntax only AVX and later start with v; these two are older than SSE.
NOT_AVX = {"verr", "verw"}


def objects(build: Path) -> dict[Path, str | None]:
    """Every object file, with the ISA build that it belongs to."""
    found: dict[Path, str | None] = {}
    for path in sorted(build.rglob("*.o")):
        matches = [FOLDER.search(str(parent)) for parent in path.parents]
        names = [match[1] for match in matches if match]
        found[path] = names[0] if names else None
    return found


def stands_in(symbol: str, isa: str) -> bool:
    """Whether a mangled name, or what it belongs to (a vtable, a local static), is in the ISA's
    namespace."""
    special = "(?:T[VTISC]|GV|GR)?"  # virtual table, its kin, type information, guard, temporary
    return bool(re.match(rf"_Z{special}Z*N[KVrRO]*7fusednn{len(isa)}{isa}", symbol))


def leaks(path: Path, isa: str, nm: str = "nm") -> list[str]:
    """The symbols that the object defines outside its namespace, as the source spells them."""
    names = []
    for line in _output(nm, "--defined-only", "--format=posix", str(path)).splitlines():
        name, kind = line.split()[:2]
        if kind in SHARED and name not in HARMLESS and not stands_in(name, isa):
            names.append(name)
    if not names:
        return []
    demangled = subprocess.run(
        ["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True
    )
    return demangled.stdout.splitlines()


def avx_instructions(path: Path, objdump: str = "objdump") -> set[str]:
    """The names of AVX instructions in the object's code."""
    code = _output(objdump, "-d", "--no-show-raw-insn", str(path))
    names = re.findall(r"^\s*[0-9a-f]+:\s+(v\w+)", code, re.MULTILINE)
    return set(names) - NOT_AVX


def check(build: Path) -> tuple[list[str], str]:
    """What is wrong, one line each, and a line that says what was looked at."""
    found = objects(build)
    wrong = []
    for path, isa in found.items():
        where = path.relative_to(build)
        if isa:
            wrong += [f"{where} defines {name}" for name in leaks(path, isa)]
        if isa not in NEEDS_AVX and _is_x86(path):
            names = sorted(avx_instructions(path))
            if names:
                wrong.append(f"{where} uses {', '.join(names[:8])}")
    isas = sorted({isa for isa in found.values() if isa})
    if not isas:
        wrong.append(f"{build} holds no object of an ISA build")
    return wrong, f"{len(found)} objects, ISA builds: {', '.join(isas)}"


def _is_x86(path: Path) -> bool:
    return path.read_bytes()[18:20] == b"\x3e\x00"  # e_machine of the ELF header


def _output(*command: str) -> str:
    environment = {**os.environ, "LC_ALL": "C"}
    return subprocess.run(
        command, capture_output=True, text=True, check=True, env=environment
    ).stdout


def main() -> int:
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_dir():
        print(__doc__, file=sys.stderr)
        return 2
    wrong, seen = check(Path(sys.argv[1]))
    for line in wrong:
        print(line)
    print(f"{seen}: {len(wrong)} leaks" if wrong else f"{seen}: nothing leaks")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
