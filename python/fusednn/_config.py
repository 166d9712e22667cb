"""What was built and what runs."""

from __future__ import annotations

from . import _core


def config() -> dict[str, str]:
    """Version, instruction sets, threads, device and build, as text.

    >>> import fusednn as fn
    >>> fn.config()["isa"] == fn.cpu_isa()
    True
    """
    return {
        "fusednn": _core.__version__,
        "isa": _core.cpu_isa(),
        "usable isas": ", ".join(_core.usable_isas()),
        "compiled isas": ", ".join(_core.compiled_isas()),
        "threads": f"{_core.get_num_threads()} of {_core.available_cpus()} available",
        "cuda": _core.cuda_status(),
        **_core.build_info(),
    }


def show_config() -> None:
    """Prints `config()`, one line per entry."""
    entries = config()
    width = max(map(len, entries))
    for name, text in entries.items():
        print(f"{name:<{width}}  {text}")
