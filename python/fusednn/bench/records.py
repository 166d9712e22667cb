"""Results of a run: one record per case, direction and implementation, and their JSON file."""

import dataclasses
import json
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FORMAT = "fusednn-bench-1"


class NotABenchFileError(ValueError):
    """The file holds no benchmark results of this format."""


@dataclass(frozen=True)
class Record:
    op: str
    case: str
    direction: str
    dtype: str
    device: str
    isa: str
    threads: int
    impl: str
    median_us: float
    best_us: float
    gflops: float
    gbps: float
    max_rel_err: float
    # The best peer's median over this one's; None for the peers themselves and without peers.
    ratio_to_best_peer: float | None
    best_peer: str | None
    # What share of the machine's measured ceiling was reached, and which ceiling it is.
    of_ceiling: float
    ceiling: str
    # The middle half of the rounds over their median.
    spread: float
    # On a GPU: between CUDA's events, and moving inputs there and results back (ours alone).
    kernel_us: float | None = None
    transfer_us: float | None = None

    @property
    def key(self) -> tuple[str, str, str, str, int]:
        """What two runs compare by."""
        return self.case, self.direction, self.dtype, self.device, self.threads


@dataclass
class Run:
    header: dict[str, Any]
    records: list[Record] = field(default_factory=list)

    def of(self, impl: str) -> dict[tuple[str, str, str, str, int], Record]:
        return {record.key: record for record in self.records if record.impl == impl}

    def save(self, path: str | Path) -> None:
        """Writes the file whole or not at all."""
        path = Path(path)
        content = {
            "format": FORMAT,
            "header": self.header,
            "records": [dataclasses.asdict(record) for record in self.records],
        }
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "w") as file:
                json.dump(content, file, indent=1)
                file.write("\n")
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink()
            raise


def load(path: str | Path) -> Run:
    """Reads what `save` wrote; NotABenchFileError for anything else."""
    try:
        content = json.loads(Path(path).read_text())
        if content["format"] != FORMAT:
            raise NotABenchFileError(f"{path}: format {content['format']!r}, expected {FORMAT!r}")
        records = [_record(item) for item in content["records"]]
        return Run(dict(content["header"]), records)
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError) as error:
        raise NotABenchFileError(f"{path}: no benchmark results ({error})") from error


def _record(item: dict[str, Any]) -> Record:
    """KeyError for a field that is missing, but for those that older files do not have."""
    fields = dataclasses.fields(Record)
    given = [f.name for f in fields if f.name in item or f.default is dataclasses.MISSING]
    return Record(**{name: item[name] for name in given})
