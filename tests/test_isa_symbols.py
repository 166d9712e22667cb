"""The leak check itself: it must see what it is there to see."""

import shutil
import subprocess
from pathlib import Path

import check_isa_symbols as checker
import pytest

pytestmark = [
    pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++"),
    pytest.mark.skipif(shutil.which("nm") is None, reason="needs binutils"),
]

CLEAN = """
namespace fusednn { namespace avx2 {
struct Shape { virtual ~Shape() {} virtual int size() const { return 1; } };
template <class T> struct Kernel { static int calls; T twice(T x) const { return x + x; } };
template <class T> int Kernel<T>::calls = 0;
namespace { int helper(int x) { return x + 1; } }
static int another(int x) { return helper(x) * 2; }
inline int& counter() { static int value = another(0); return value; }
float run(float x) {
    auto local = [](float y) { return Kernel<float>().twice(y) + float(counter()); };
    Kernel<float>::calls += Shape().size();
    return local(x);
}
} }
"""


def compiled(folder: Path, source: str, target: str = "fusednn_cpu_avx2", *flags: str) -> Path:
    """The build directory with the source compiled as a file of the target."""
    objects = folder / "CMakeFiles" / f"{target}.dir" / "csrc" / "cpu"
    objects.mkdir(parents=True, exist_ok=True)
    file = folder / "file.cpp"
    file.write_text(source)
    command = ["g++", "-std=c++17", "-c", *flags, str(file), "-o", str(objects / "file.cpp.o")]
    subprocess.run(command, check=True)
    return folder


def test_clean_code_passes(tmp_path):
    wrong, seen = checker.check(compiled(tmp_path, CLEAN, "fusednn_cpu_avx2", "-O0", "-mavx2"))
    assert wrong == []
    assert seen == "1 objects, ISA builds: avx2"


LEAKS = [
    ("inline int shared(int x) { return x; }\nint (*use)(int) = shared;", "shared(int)"),
    ("namespace fusednn { int run() { return 1; } }", "fusednn::run()"),
    ("namespace fusednn::avx512 { int run() { return 1; } }", "fusednn::avx512::run"),
    ("namespace fusednn::avx22 { int run() { return 1; } }", "fusednn::avx22::run"),
    ('extern "C" int run() { return 1; }', "run"),
    ("int value = 3;", "value"),
    ("inline int value = 3;\nint* use = &value;", "value"),
    ("#include <algorithm>\nnamespace fusednn::avx2 {\n"
     "int run(int a, int b) { return std::max(a, b); } }", "std::max<int>"),
    ("struct Base { virtual int f() { return 1; } };\nint run() { return Base().f(); }",
     "vtable for Base"),
]  # fmt: skip


@pytest.mark.parametrize(("leak", "name"), LEAKS)
def test_leaks_are_named(tmp_path, leak, name):
    wrong, _ = checker.check(compiled(tmp_path, leak, "fusednn_cpu_avx2", "-O0"))
    assert any(line.startswith("CMakeFiles") and name in line for line in wrong), wrong


def test_symbols_of_other_objects_are_free(tmp_path):
    compiled(tmp_path, CLEAN)
    assert checker.check(compiled(tmp_path, "int anything = 1;", "fusednn_host"))[0] == []


def test_avx_outside_its_builds_is_seen(tmp_path):
    source = "namespace fusednn { namespace baseline { float f(float x) { return x * x; } } }"
    compiled(tmp_path, source, "fusednn_cpu_baseline")
    assert checker.check(tmp_path)[0] == []
    for target in ("fusednn_cpu_baseline", "fusednn_host"):
        compiled(tmp_path, source, target, "-mavx")
        wrong, _ = checker.check(tmp_path)
        assert any(target in line and "vmulss" in line for line in wrong), wrong
    assert checker.avx_instructions(next(tmp_path.rglob("*.o"))) >= {"vmulss"}


def test_a_folder_without_kernels_fails(tmp_path):
    wrong, _ = checker.check(tmp_path)
    assert wrong == [f"{tmp_path} holds no object of an ISA build"]


def test_usage(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["check_isa_symbols.py"])
    assert checker.main() == 2
    assert "usage:" in capsys.readouterr().err
