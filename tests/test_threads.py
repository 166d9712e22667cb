"""The thread pool from Python: where the thread count comes from, forks, threadpoolctl, idling.

Results are the same bits whatever the count, and from whichever Python thread.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import fusednn as fn
import fusednn.functional as F
from fusednn import _core

CPUS = sorted(os.sched_getaffinity(0))
several_cpus = pytest.mark.skipif(len(CPUS) < 2, reason="needs two CPUs")


def python(code: str, **environment: str) -> str:
    """What `code` prints in a new process; AssertionError with its errors if it fails."""
    inherited = {k: v for k, v in os.environ.items() if k != "FUSEDNN_NUM_THREADS"}
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        env={**inherited, **environment},
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def conv_args():
    """A convolution large enough to run on several threads (29 Mflop)."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((8, 16, 28, 28)).astype(np.float32)
    w = rng.standard_normal((16, 16, 3, 3)).astype(np.float32)
    return x, w


def digest() -> str:
    """The bits of results and gradients of ops that use the pool in different ways."""
    rng = np.random.default_rng(1)
    hash = hashlib.sha256()
    for shape, out, kernel, options in (
        ((16, 32, 28, 28), 32, 3, {"padding": 1}),
        ((3, 7, 61, 67), 5, 3, {"stride": 2, "padding": 1}),
        ((8, 16, 60, 60), 16, 3, {"groups": 16}),
    ):
        shapes = shape, (out, shape[1] // options.get("groups", 1), kernel, kernel), (out,)
        x, w, b = (
            fn.tensor(rng.standard_normal(s).astype(np.float32), requires_grad=True) for s in shapes
        )
        y = F.max_pool2d(F.relu(F.conv2d(x, w, b, **options)), 2)
        y.sum().backward()
        for tensor in (y, x.grad, w.grad, b.grad):
            hash.update(np.ascontiguousarray(tensor.numpy()).tobytes())
    logits = rng.standard_normal((3000, 1000)).astype(np.float32)
    hash.update(F.softmax(logits, 1).tobytes())
    hash.update(F.linear(logits, logits[:100]).tobytes())
    return hash.hexdigest()


# ---- how many threads ----------------------------------------------------------------------------


def test_set_and_get():
    default = fn.get_num_threads()
    assert default >= 1
    for n in (1, 2, 3, 64):  # also more than there are CPUs
        fn.set_num_threads(n)
        assert fn.get_num_threads() == n
    fn.set_num_threads(np.int64(2))
    assert fn.get_num_threads() == 2
    fn.set_num_threads(0)
    assert fn.get_num_threads() == default


@pytest.mark.parametrize(
    ("n", "error", "text"),
    [
        (-1, ValueError, r"set_num_threads: n must be from 0 \(the default\) to 4096, got -1"),
        (4097, ValueError, "set_num_threads: n must be from 0 .* to 4096, got 4097"),
        (10**30, ValueError, "set_num_threads: n = 1000000000000000000000000000000 does not fit"),
        (2.0, TypeError, "set_num_threads: n must be an int, got float"),
        ("2", TypeError, "set_num_threads: n must be an int, got str"),
        (None, TypeError, "set_num_threads: n must be an int, got NoneType"),
    ],
)
def test_bad_counts(n, error, text):
    fn.set_num_threads(2)
    with pytest.raises(error, match=text):
        fn.set_num_threads(n)
    assert fn.get_num_threads() == 2


PRINT_COUNT = "import fusednn as fn; print(fn.get_num_threads())"


def test_environment_variable():
    assert python(PRINT_COUNT, FUSEDNN_NUM_THREADS="3") == "3"
    assert python(PRINT_COUNT, FUSEDNN_NUM_THREADS="") == str(_core.available_cpus())
    assert 1 <= _core.available_cpus() <= len(CPUS)
    code = "import fusednn as fn; fn.set_num_threads(5); fn.set_num_threads(0)"
    assert python(code + "; print(fn.get_num_threads())", FUSEDNN_NUM_THREADS="3") == "3"


@pytest.mark.parametrize("value", ["0", "-2", "two", "1.5", "4097", "2 threads"])
def test_bad_environment_variable(value):
    code = "import fusednn"
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "FUSEDNN_NUM_THREADS": value},
    )
    assert result.returncode != 0
    expected = f"FUSEDNN_NUM_THREADS must be an integer from 1 to 4096, got '{value}'"
    assert expected in result.stderr
    assert "Traceback" in result.stderr  # an ordinary exception, no abort


@several_cpus
@pytest.mark.skipif(_core.available_cpus() < len(CPUS), reason="a CPU quota decides")
def test_default_follows_affinity():
    one, all_of_them = CPUS[:1], CPUS
    code = f"""
import os
os.sched_setaffinity(0, {one})
import fusednn as fn
print(fn.get_num_threads(), end=" ")
os.sched_setaffinity(0, {all_of_them})
print(fn.get_num_threads(), end=" ")
os.sched_setaffinity(0, {one})
print(fn.get_num_threads(), end=" ")
fn.set_num_threads(3)
print(fn.get_num_threads())
"""
    assert python(code) == f"1 {len(CPUS)} 1 3"


def own_cpu_group() -> str | None:
    """A new CPU control group of either version, or None where we may not make one."""
    for mount, quota in (("/sys/fs/cgroup/cpu", "cpu.cfs_quota_us"), ("/sys/fs/cgroup", "cpu.max")):
        group = f"{mount}/fusednn-test-{os.getpid()}"
        try:
            os.mkdir(group)
        except OSError:
            continue
        if os.path.exists(f"{group}/{quota}"):
            return group
        os.rmdir(group)
    return None


@several_cpus
def test_default_follows_cgroup_quota():
    group = own_cpu_group()
    if group is None:
        pytest.skip("no right to make a CPU control group")
    version_1 = os.path.exists(f"{group}/cpu.cfs_quota_us")
    file = f"{group}/cpu.cfs_quota_us" if version_1 else f"{group}/cpu.max"

    def quota(cpus: float) -> str:
        return str(int(cpus * 100000)) if version_1 else f"{int(cpus * 100000)} 100000"

    code = f"""
import os, time
def write(name, text):
    with open(name, "w") as file: file.write(text)
write({file!r}, {quota(0.5)!r})
write({group + "/cgroup.procs"!r}, str(os.getpid()))
import fusednn as fn
print(fn.get_num_threads(), end=" ")
write({file!r}, {quota(1.5)!r})
time.sleep(1.1)  # the files are read once a second
print(fn.get_num_threads())
"""
    try:
        assert python(code) == "1 2"
    finally:
        os.rmdir(group)


# ---- results -------------------------------------------------------------------------------------


def test_same_bits_at_any_thread_count(isa):
    digests = set()
    for n in (1, 2, 3, 7):
        fn.set_num_threads(n)
        digests |= {digest(), digest()}
    assert len(digests) == 1


def test_several_python_threads():
    """They share one pool; whoever finds it taken works alone, with the same results."""
    x, w = conv_args()
    fn.set_num_threads(3)
    expected = F.conv2d(x, w, padding=1)
    wrong = []

    def work():
        for _ in range(30):
            if not np.array_equal(F.conv2d(x, w, padding=1), expected):
                wrong.append(threading.get_ident())

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_kernels_release_the_gil():
    """While one long op runs, another Python thread gets on with its own work."""
    fn.set_num_threads(1)
    a = np.ones((1500, 1500), np.float32)
    F.linear(a, a)
    ticks: list[float] = []
    stop = threading.Event()

    def tick():
        while not stop.is_set():
            ticks.append(time.perf_counter())
            time.sleep(0.0002)

    ticker = threading.Thread(target=tick)
    ticker.start()
    spans = []
    try:
        for _ in range(10):
            begin = time.perf_counter()
            F.linear(a, a)
            spans.append((begin, time.perf_counter()))
    finally:
        stop.set()
        ticker.join()
    # In the middle of an op, where a thread that needs the lock could not be.
    inside = sum(
        begin + (end - begin) / 4 < t < end - (end - begin) / 4
        for begin, end in spans
        for t in ticks
    )
    assert inside >= 20


# ---- forks and exit ------------------------------------------------------------------------------

FORK = """
import hashlib, os, signal, threading, time, warnings
warnings.simplefilter("ignore")
import numpy as np, fusednn as fn, fusednn.functional as F
rng = np.random.default_rng(0)
x = rng.standard_normal((8, 16, 28, 28)).astype(np.float32)
w = rng.standard_normal((16, 16, 3, 3)).astype(np.float32)
def run(): return hashlib.sha256(F.conv2d(x, w, padding=1).tobytes()).hexdigest()
fn.set_num_threads(3)
expected = run()
stop = threading.Event()
def loop():
    while not stop.is_set(): run()
others = [threading.Thread(target=loop) for _ in range({others})]
for other in others: other.start()
for attempt in range(10):
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # a child that hangs is killed
        ok = fn.get_num_threads() == 1 and run() == expected
        fn.set_num_threads(2)
        ok = ok and fn.get_num_threads() == 2 and run() == expected
        os._exit(0 if ok else 1)
    _, status = os.waitpid(child, 0)
    print(os.waitstatus_to_exitcode(status), end=" ")
stop.set()
for other in others: other.join()
print(fn.get_num_threads(), run() == expected)
"""


@pytest.mark.parametrize("others", [0, 2])
def test_fork_after_use(others):
    """Children compute the same bits, also if forked while other threads are inside a kernel."""
    assert python(FORK.replace("{others}", str(others))) == "0 " * 10 + "3 True"


def test_multiprocessing_fork_pool():
    code = """
import multiprocessing
import numpy as np, fusednn as fn, fusednn.functional as F
x, w = np.ones((8, 16, 28, 28), np.float32), np.ones((16, 16, 3, 3), np.float32)
fn.set_num_threads(2)
F.conv2d(x, w)
def job(i): return fn.get_num_threads(), float(F.conv2d(x * i, w)[0, 0, 0, 0])
with multiprocessing.get_context("fork").Pool(3) as pool:
    print(pool.map(job, range(6)))
"""
    assert python(code) == str([(1, 144.0 * i) for i in range(6)])


def test_exit_beside_a_busy_pool():
    """A daemon thread is inside kernels when the interpreter ends: no hang, no crash."""
    code = """
import threading, time
import numpy as np, fusednn as fn, fusednn.functional as F
fn.set_num_threads(3)
x, w = np.ones((8, 16, 28, 28), np.float32), np.ones((16, 16, 3, 3), np.float32)
def loop():
    while True: F.conv2d(x, w)
threading.Thread(target=loop, daemon=True).start()
time.sleep(0.2)
print("done")
"""
    for _ in range(3):
        assert python(code) == "done"


# ---- a good neighbour ----------------------------------------------------------------------------


def cpu_share(code: str) -> float:
    """CPU time over wall time of the loop body `code`, run each millisecond for a second."""
    return float(
        python(f"""
import time
import numpy as np, fusednn as fn, fusednn.functional as F
fn.set_num_threads(4)
x, w = np.ones((8, 16, 28, 28), np.float32), np.ones((16, 16, 3, 3), np.float32)
small = np.ones((4, 96, 96), np.float32)
F.conv2d(x, w)
time.sleep(0.05)
cpu, wall = time.process_time(), time.perf_counter()
while time.perf_counter() < wall + 1:
    {code}
    time.sleep(0.001)
print((time.process_time() - cpu) / (time.perf_counter() - wall))
""")
    )


def test_idle_pool_burns_nothing():
    # The loop itself (sleeping 1 ms at a time) takes about 1 %.
    assert cpu_share("pass") < 0.04


def test_small_op_each_millisecond():
    """An op under the work limit wakes nobody: what it costs is its own time, some 10 us."""
    assert cpu_share("F.relu(small)") < 0.05


def test_threads_start_when_first_wanted():
    code = """
import os, numpy as np, fusednn as fn, fusednn.functional as F
threads = lambda: len(os.listdir("/proc/self/task"))
fn.set_num_threads(4)
before = threads()
F.relu(np.ones(1000, np.float32))
print(threads() - before, end=" ")
F.conv2d(np.ones((8, 16, 28, 28), np.float32), np.ones((16, 16, 3, 3), np.float32))
print(threads() - before)
"""
    assert python(code, OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1") == "0 3"


# ---- threadpoolctl -------------------------------------------------------------------------------

LIMITS = """
def ours():
    found = [i for i in threadpoolctl.threadpool_info() if i["user_api"] == "fusednn"]
    assert len(found) == 1, found
    return found[0]
fn.set_num_threads(3)
info = ours()
print(info["num_threads"], info["internal_api"], info["version"] == fn.__version__, end=" ")
with threadpoolctl.threadpool_limits(1):
    print(fn.get_num_threads(), end=" ")
print(fn.get_num_threads(), end=" ")
with threadpoolctl.threadpool_limits(2, user_api="fusednn"):
    print(fn.get_num_threads(), end=" ")
with threadpoolctl.threadpool_limits(2, user_api="blas"):
    print(fn.get_num_threads())
"""


@pytest.mark.parametrize(
    "imports",
    [
        "import threadpoolctl, fusednn as fn",
        "import fusednn as fn, threadpoolctl",
        # Looking whether it is installed is not importing it.
        "import fusednn as fn, importlib.util; importlib.util.find_spec('threadpoolctl')\n"
        "import threadpoolctl",
        "import fusednn as fn, threadpoolctl; fn._threadpoolctl.register()",
        "import fusednn as fn; fn._threadpoolctl.register()\nimport threadpoolctl",
    ],
)
def test_threadpoolctl_governs_the_pool(imports):
    pytest.importorskip("threadpoolctl")
    assert python(imports + LIMITS) == "3 fusednn True 1 3 2 3"


def test_threadpoolctl_leaves_no_trace():
    """The hook goes once it has done its work, and the module is as if imported without it."""
    pytest.importorskip("threadpoolctl")
    code = """
import sys, fusednn
hooks = len(sys.meta_path)
import threadpoolctl, importlib, inspect
print(hooks - len(sys.meta_path), inspect.getsource(threadpoolctl)[:3] == '\"\"\"', end=" ")
importlib.reload(threadpoolctl)
print(type(threadpoolctl.__loader__).__name__)
"""
    assert python(code) == "1 True SourceFileLoader"


@several_cpus
def test_threadpoolctl_keeps_the_default():
    """After a limit ends, a count that followed the CPUs follows them again."""
    pytest.importorskip("threadpoolctl")
    code = f"""
import os, threadpoolctl, fusednn as fn
default = fn.get_num_threads()
with threadpoolctl.threadpool_limits(1, user_api="fusednn"): print(fn.get_num_threads(), end=" ")
print(fn.get_num_threads() == default, end=" ")
os.sched_setaffinity(0, {CPUS[:1]})
print(fn.get_num_threads())
"""
    assert python(code) == "1 True 1"


def test_without_threadpoolctl():
    code = """
import sys, fusednn, importlib.util
sys.path.clear()
print(importlib.util.find_spec("threadpoolctl"), end=" ")
try: import threadpoolctl
except ModuleNotFoundError as error: print(error)
"""
    assert python(code) == "None No module named 'threadpoolctl'"
