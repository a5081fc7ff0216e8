"""What docs/conformance.html calls green stays green: a part of it, asked anew."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from child_process import ROOT

from conformance import html

# About 40 of the 2,049 pairs, of operators from all of the alphabet. Another: TORCH_PJRT_CONFORMANCE_SHARD=7/50
SHARD = os.environ.get("TORCH_PJRT_CONFORMANCE_SHARD", "3/50")
GREEN = ("native", "decomposed", "host")


def test_no_green_pair_has_turned(tmp_path):
    published = html.data((ROOT / "docs/conformance.html").read_text())["rows"]
    out = tmp_path / "forward.jsonl"
    command = [
        sys.executable,
        "-m",
        "conformance",
        "--shard",
        SHARD,
        "--max-samples",
        "2",
        "--report",
        "sample",
    ]
    done = subprocess.run([*command, "--out", out], cwd=ROOT, capture_output=True, text=True, check=False)
    records = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(records) > 20, done.stderr
    asked = [record for record in records if published[record["operator"]][record["dtype"]] in GREEN]
    assert len(asked) > 20
    turned = {
        f"{record['operator']} {record['dtype']}": record["failures"]
        for record in asked
        if record["status"] != "green"
    }
    assert not turned
