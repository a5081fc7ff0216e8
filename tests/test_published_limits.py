"""docs/testing.md counts every skip and every loosened comparison of the tests: none is hidden."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "testing.md"
SOURCES = [
    path
    for pattern in ("tests/*.py", "crates/*/tests/**/*.rs", "crates/*/src/**/*.rs")
    for path in ROOT.glob(pattern)
    if path != Path(__file__)
]
SKIPS = re.compile(r"pytest\.skip\(|importorskip\(|mark\.skip|mark\.xfail|pytest\.xfail\(|#\[ignore")
# Where a comparison is given numbers of its own.
LOOSENED = re.compile(r"\b(?:rtol|rel|abs)=[\d(-]|\"rtol\": *\d|rtol: float = \d|let tolerance =")


def published(heading: str) -> dict[str, int]:
    """Places by file, from the table under a heading of the page."""
    section = PAGE.read_text().split(f"## {heading}\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| ((?:tests|crates)/\S+) \| (\d+) \|", section, re.MULTILINE)
    return {file: int(places) for file, places in rows}


def counted(pattern: re.Pattern[str]) -> dict[str, int]:
    """Lines that match, by file."""
    found = {}
    for path in SOURCES:
        places = sum(pattern.search(line) is not None for line in path.read_text().splitlines())
        if places:
            found[str(path.relative_to(ROOT))] = places
    return found


@pytest.mark.parametrize(("heading", "pattern"), [("Skips", SKIPS), ("Looser comparisons", LOOSENED)])
def test_the_page_counts_what_the_sources_hold(heading, pattern):
    assert published(heading) == counted(pattern)
