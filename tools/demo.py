"""Run both examples on the CPU and the device; end with `demo: tokens=48/48 cosine=... fallbacks=0`.

Exit status 1 when a token differs, a cosine is below 0.99999, or an operator fell back to the host.
"""

import json
import os
import subprocess
import sys

from report import REPORTS, close

ROOT = REPORTS.parent.parent
MIN_COSINE = 0.99999


def run(name: str) -> dict:
    report = REPORTS / f"{name}.json"
    report.unlink(missing_ok=True)
    print(f"\n==> examples/{name}.py", flush=True)
    command = [sys.executable, str(ROOT / "examples" / f"{name}.py"), "--report", str(report)]
    # Progress bars are for terminals; TQDM_DISABLE quietens the loader's, which does not look.
    environment = os.environ | ({} if sys.stderr.isatty() else {"TQDM_DISABLE": "1"})
    status = subprocess.run(command, env=environment, check=False).returncode
    if not report.exists():
        sys.exit(f"examples/{name}.py failed with exit status {status}")
    return json.loads(report.read_text())


def floor(cosine: float) -> str:
    """Six places, never rounded up: 0.9999999 reads 0.999999."""
    return f"{int(cosine * 1e6) / 1e6:.6f}"


def main() -> int:
    REPORTS.mkdir(parents=True, exist_ok=True)
    generate, embed = run("generate"), run("embed")
    devices = [generate["devices"]["tpu"], embed["devices"]["tpu"]]
    fallbacks = sum(device["fallbacks"] for device in devices)
    first = devices[0]["first_token_seconds"]
    print(
        f"\nSmolLM2 on tpu: first token after {first:.2f} s, {devices[0]['tokens_per_second']:.1f} tokens/s; "
        f"{sum(device['compiles'] for device in devices)} programs compiled, "
        f"{sum(device['disk_hits'] for device in devices)} read from the cache"
    )
    line = {
        "tokens": f"{generate['tokens_equal']}/{generate['tokens']}",
        "cosine": floor(embed["min_cosine"]),
        "fallbacks": fallbacks,
    }
    close("demo", line, {"generate": generate, "embed": embed})
    good = (
        generate["tokens_equal"] == generate["tokens"] and embed["min_cosine"] >= MIN_COSINE and not fallbacks
    )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
