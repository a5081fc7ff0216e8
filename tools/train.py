"""Run both training examples on the CPU and the device, then fine-tune once more with a stop half way; end with
`train: accuracy=... digits_difference=... lm_difference=... resumed=identical fallbacks=0 host_kernels=0`.

Exit status 1 when the digits are read worse than 97 in 100 times, a loss is too far from the CPU's (1e-3 in the first
20 steps of the digits, one hundredth in the language model), the resumed run is not the uninterrupted one to the last
bit, or anything ran on the host.
"""

import json
import os
import subprocess
import sys
import tempfile

from report import REPORTS, close

ROOT = REPORTS.parent.parent
MIN_ACCURACY = 0.97


def run(name: str, *arguments: str, report: str | None = None) -> dict:
    path = REPORTS / f"{report or name}.json"
    path.unlink(missing_ok=True)
    print(f"\n==> examples/{name}.py {' '.join(arguments)}", flush=True)
    command = [sys.executable, str(ROOT / "examples" / f"{name}.py"), *arguments, "--report", str(path)]
    # Progress bars are for terminals; TQDM_DISABLE quietens the loader's, which does not look.
    environment = os.environ | ({} if sys.stderr.isatty() else {"TQDM_DISABLE": "1"})
    status = subprocess.run(command, env=environment, check=False).returncode
    if not path.exists():
        sys.exit(f"examples/{name}.py failed with exit status {status}")
    return json.loads(path.read_text()) | {"status": status}


def interrupted(steps: int) -> dict:
    """The report of a second process that goes on where a first one stopped half way."""
    with tempfile.TemporaryDirectory(dir=REPORTS.parent) as folder:
        common = ("--device", "tpu", "--checkpoint", folder)
        run("finetune_lm", *common, "--steps", str(steps // 2), report="finetune_lm_half")
        return run("finetune_lm", *common, "--steps", str(steps), "--resume", report="finetune_lm_resumed")


def main() -> int:
    REPORTS.mkdir(parents=True, exist_ok=True)
    digits, language = run("train_digits"), run("finetune_lm")
    whole = language["devices"]["tpu"]
    resumed = interrupted(len(whole["losses"]))["devices"]["tpu"]
    same = all(whole[key] == resumed[key] for key in ("losses", "loss_before", "loss_after"))
    runs = [digits["devices"]["tpu"], whole, resumed]
    accuracy = digits["devices"]["tpu"]["accuracy"]
    host = {key: sum(run[key] for run in runs) for key in ("fallbacks", "host_kernels")}
    line = {
        "accuracy": f"{accuracy:.4f}",
        "digits_difference": f"{digits['max_difference']:.1e}",
        "lm_difference": f"{language['max_relative_difference']:.1e}",
        "resumed": "identical" if same else "different",
        **host,
    }
    print()
    close("train", line, {"digits": digits, "language": language})
    good = accuracy >= MIN_ACCURACY and same and not any(host.values())
    return 0 if good and not digits["status"] and not language["status"] else 1


if __name__ == "__main__":
    sys.exit(main())
