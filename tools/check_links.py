"""Check that relative links in Markdown pages lead to files that exist.

python tools/check_links.py README.md docs
"""

import re
import sys
from pathlib import Path

LINK = re.compile(r"!?\[[^\]]*\]\(([^)#\s]+)[^)]*\)")


def pages(arguments: list[str]) -> list[Path]:
    found: list[Path] = []
    for argument in map(Path, arguments):
        found += sorted(argument.rglob("*.md")) if argument.is_dir() else [argument]
    return found


def main(arguments: list[str]) -> int:
    broken = 0
    checked = pages(arguments)
    for page in checked:
        for number, line in enumerate(page.read_text().splitlines(), 1):
            for target in LINK.findall(line):
                if "://" not in target and not (page.parent / target).exists():
                    print(f"{page}:{number}: {target} does not exist", file=sys.stderr)
                    broken += 1
    print(f"docs: pages={len(checked)} broken_links={broken}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
