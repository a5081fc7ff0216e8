"""The picture of a benchmark's table."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from cases import BY_NAME


def plot(rows: list[dict[str, object]], path: Path) -> Path:
    """Bars of the ratio to CPU eager, one group per case; a tick marks the limit of a case. Returns `path`."""
    names = list(dict.fromkeys(row["case"] for row in rows))
    threads = sorted({row["threads"] for row in rows})
    height = 0.8 / len(threads)
    figure, axes = plt.subplots(figsize=(8, 0.6 * len(names) + 1.5), layout="constrained")
    for index, count in enumerate(threads):
        ratios = {row["case"]: row["ratio"] for row in rows if row["threads"] == count}
        places = [names.index(name) + (index - (len(threads) - 1) / 2) * height for name in ratios]
        bars = axes.barh(places, list(ratios.values()), height, label=f"{count} thread{'s' * (count > 1)}")
        axes.bar_label(bars, fmt="%.2f", padding=3, fontsize=8)
    for place, name in enumerate(names):
        if limit := BY_NAME[name].limit:
            axes.plot([limit, limit], [place - 0.45, place + 0.45], color="black", linewidth=1.5)
    axes.axvline(1, color="grey", linewidth=0.8, linestyle=":")
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlabel("time on the device / time of CPU eager (black: limit with two threads)")
    axes.legend(loc="lower right")
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return path
