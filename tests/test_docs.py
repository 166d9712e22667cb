"""The documents are true: their Python blocks run, and what they link to exists."""

import re
import shlex
from pathlib import Path

import pytest

from fusednn import cli

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted({*ROOT.glob("*.md"), *ROOT.glob("*/README.md"), *ROOT.glob("docs/**/*.md")})
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]+\]\(([^)#]+)(?:#[^)]*)?\)")


def blocks(path: Path) -> list[tuple[int, str]]:
    """The Python blocks of a document, each with the line it starts at."""
    text = path.read_text()
    return [(text[: match.start(1)].count("\n"), match[1]) for match in BLOCK.finditer(text)]


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", [path for path in DOCUMENTS if blocks(path)], ids=name)
def test_python_blocks_run(path, tmp_path, monkeypatch):
    """From top to bottom in one namespace, as a reader would type them."""
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "__main__"}
    for line, source in blocks(path):
        # Blank lines in front, so that a traceback points into the document.
        exec(compile("\n" * line + source, str(path), "exec"), namespace)


def test_every_python_block_is_found():
    """A fence written otherwise ("```py", indented) would silently not be run."""
    for path in DOCUMENTS:
        fences = re.findall(r"^\s*```\s*(\w*)\s*$", path.read_text(), re.MULTILINE)
        assert fences.count("python") == len(blocks(path)), path
        assert set(fences) <= {"", "python", "bash", "text"}, path
        assert len(fences) % 2 == 0, path


@pytest.mark.parametrize("path", DOCUMENTS, ids=name)
def test_links_lead_somewhere(path):
    for target in LINK.findall(BLOCK.sub("", path.read_text())):
        if not re.match(r"\w+:", target):
            assert (path.parent / target).exists(), target


COMMAND = re.compile(r"^python -m fusednn (.*?)(?: *#.*)?$", re.MULTILINE)


@pytest.mark.parametrize("path", DOCUMENTS, ids=name)
def test_commands_are_real(path):
    """Every command line shown is one that the parser takes."""
    for bash in re.findall(r"^```bash\n(.*?)^```$", path.read_text(), re.MULTILINE | re.DOTALL):
        for line in COMMAND.findall(bash):
            cli._parser().parse_args(shlex.split(line))


def test_first_screen_of_the_readme():
    """The two commands and the example are what a visitor sees first."""
    first = "\n".join((ROOT / "README.md").read_text().splitlines()[:45])
    assert "pip install '.[demo]' && python -m fusednn demo" in first
    assert "pip install '.[test]' && pytest" in first
    assert len(BLOCK.findall(first)) == 1
