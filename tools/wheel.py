"""Check the newest wheel of a folder: what must be inside is inside, and it is at most 15 MB."""

import re
import sys
import zipfile
from pathlib import Path

from report import close

MAX_MEGABYTES = 15.0
REQUIRED = {
    "core": r"torch_pjrt/_core\.abi3\.so",
    "shim": r"torch_pjrt/_shim_\d+_\d+\.so",
    "torch_tpu": r"torch_tpu/_loader\.py",
    "entry points": r"torch_pjrt-.*\.dist-info/entry_points\.txt",
    "licence": r"torch_pjrt-.*\.dist-info/licenses/LICENSE",
}


def main(folder: str) -> int:
    wheels = sorted(Path(folder).glob("torch_pjrt-*.whl"), key=lambda path: path.stat().st_mtime)
    if not wheels:
        sys.exit(f"no wheel of torch-pjrt in {folder}")
    wheel = wheels[-1]
    names = zipfile.ZipFile(wheel).namelist()
    missing = [what for what, pattern in REQUIRED.items() if not any(re.fullmatch(pattern, n) for n in names)]
    shims = [name.split("/")[1] for name in names if re.fullmatch(REQUIRED["shim"], name)]
    megabytes = wheel.stat().st_size / 1e6
    close(
        "wheel",
        {"megabytes": f"{megabytes:.1f}", "shims": len(shims), "file": str(wheel)},
        {"missing": missing},
    )
    if missing:
        print(f"missing from the wheel: {', '.join(missing)}", file=sys.stderr)
    return 1 if missing or megabytes > MAX_MEGABYTES else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
