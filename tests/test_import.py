"""What `import fusednn` brings and costs; the examples in the docstrings."""

import doctest
import importlib
import os
import pkgutil
import subprocess
import sys
import threading

import numpy as np
import pytest

import fusednn as fn
from fusednn import _core

HEAVY = (
    "torch",
    "matplotlib",
    "cupy",
    "sklearn",
    "tqdm",
    "rich",
    "scipy",
    "safetensors",
    "argparse",
)


def python(code, **environment):
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def modules():
    names = ["fusednn"]
    for info in pkgutil.walk_packages(fn.__path__, "fusednn."):
        if not info.name.endswith(("__main__", "._core")) and ".bench" not in info.name:
            names.append(info.name)
    return names


def test_nothing_heavy_is_imported():
    code = f"import numpy, sys; had = set(sys.modules); import fusednn; print([m for m in {HEAVY} if m in sys.modules and m not in had])"  # noqa: E501
    assert python(code) == "[]"


def test_public_names():
    for name in fn.__all__:
        assert getattr(fn, name) is not None
    for package in (fn.nn, fn.optim, fn.functional, fn.testing, fn.io, fn.data, fn.models):
        for name in package.__all__:
            assert hasattr(package, name), (package.__name__, name)
    assert sorted(set(fn.__all__)) == sorted(fn.__all__)
    assert fn.optim.lr_scheduler.StepLR
    assert isinstance(fn.__version__, str)
    assert fn.has_cuda() in (False, True)
    assert len(fn.cuda_status()) >= 10


def test_config(capsys):
    fn.show_config()
    out = capsys.readouterr().out
    assert f"isa            {fn.cpu_isa()}" in out
    assert len(out.splitlines()) == len(fn.config())
    assert fn.config()["threads"].startswith(str(fn.get_num_threads()))


@pytest.mark.parametrize("name", modules())
def test_examples_in_docstrings(name):
    module = importlib.import_module(name)
    result = doctest.testmod(module, extraglobs={"np": np}, report=True)
    assert result.failed == 0


PACKAGES = (
    fn, fn.functional, fn.nn, fn.nn.init, fn.nn.utils, fn.nn.utils.rnn, fn.optim, fn.testing, fn.io,
    fn.data, fn.models, fn.analysis,
)  # fmt: skip
PUBLIC = [
    (package.__name__, name)
    for package in PACKAGES
    for name in getattr(package, "__all__", [n for n in vars(package) if n.endswith("_")])
]


@pytest.mark.parametrize(("package", "name"), PUBLIC)
def test_public_things_explain_themselves(package, name):
    thing = getattr(importlib.import_module(package), name)
    if callable(thing) and getattr(thing, "__module__", "").startswith("fusednn."):
        assert thing.__doc__, f"{package}.{name} has no docstring"


def test_every_function_has_an_example():
    for name in fn.functional.__all__:
        assert ">>>" in getattr(fn.functional, name).__doc__, name


def test_isa_in_a_block():
    before = fn.cpu_isa()
    for name in _core.usable_isas():
        with fn.testing.isa(name):
            assert fn.cpu_isa() == name
        assert fn.cpu_isa() == before
    with pytest.raises(ValueError, match="nonsense"), fn.testing.isa("nonsense"):
        pass
    with pytest.raises(KeyError), fn.testing.isa(_core.usable_isas()[0]):
        raise KeyError
    assert fn.cpu_isa() == before


def test_threads_may_train_side_by_side():
    def work(out):
        x = np.random.default_rng(0).standard_normal((16, 8)).astype(np.float32)
        w = fn.tensor(np.ones((4, 8), np.float32), requires_grad=True)
        for _ in range(50):
            w.grad = None
            fn.functional.linear(x, w).tanh().sum().backward()
        out.append(w.grad.tolist())

    results = []
    threads = [threading.Thread(target=work, args=(results,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    assert all(result == results[0] for result in results)
