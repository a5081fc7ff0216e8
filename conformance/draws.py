"""Whether random numbers of the device come from the distribution of the CPU's: two-sample tests."""

from __future__ import annotations

import math

import torch

COUNT = 100_000
# The chance that a right generator fails. The seeds are fixed, so a verdict never changes from run to run.
CHANCE = 1e-6


def compare(ours: torch.Tensor, theirs: torch.Tensor) -> str | None:
    """Compare two sets of draws, on the CPU; None when they may come from one distribution.

    Few distinct values are compared by their counts (chi-squared), others by the largest distance of the
    empirical distribution functions (Kolmogorov-Smirnov). Complex numbers are two draws each.
    """
    if ours.is_complex() and theirs.is_complex():
        ours, theirs = torch.view_as_real(ours), torch.view_as_real(theirs)
    ours, theirs = ours.double().flatten(), theirs.double().flatten()
    if min(len(ours), len(theirs)) < COUNT:
        return f"{min(len(ours), len(theirs))} draws are too few"
    if not torch.equal(ours.isfinite().all(), theirs.isfinite().all()):
        return "numbers that are not finite, on one side"
    if len(torch.cat([ours, theirs]).unique()) <= 100:
        return chi_squared(ours, theirs)
    return kolmogorov_smirnov(ours, theirs)


def kolmogorov_smirnov(ours: torch.Tensor, theirs: torch.Tensor) -> str | None:
    both = torch.cat([ours, theirs]).sort().values
    below = [
        torch.searchsorted(side.sort().values, both, right=True).double() / len(side)
        for side in (ours, theirs)
    ]
    distance = (below[0] - below[1]).abs().max()
    # Smirnov's asymptotic bound; with ties the test is more lenient, never stricter.
    limit = math.sqrt(-math.log(CHANCE / 2) / 2 * (1 / len(ours) + 1 / len(theirs)))
    return None if distance <= limit else f"Kolmogorov-Smirnov distance {distance:.4f}, limit {limit:.4f}"


def chi_squared(ours: torch.Tensor, theirs: torch.Tensor) -> str | None:
    values, index = torch.cat([ours, theirs]).unique(return_inverse=True)
    table = torch.stack(
        [
            torch.bincount(part, minlength=len(values)).double()
            for part in index.split([len(ours), len(theirs)])
        ]
    )
    # The approximation wants at least five expected in each cell: rarer values are counted together.
    rare = table.sum(0) < 10
    table = torch.cat([table[:, ~rare], table[:, rare].sum(1, keepdim=True)], 1)
    table = table[:, table.sum(0) > 0]
    if table.shape[1] < 2:
        return None
    expected = table.sum(1, keepdim=True) * table.sum(0, keepdim=True) / table.sum()
    statistic = ((table - expected) ** 2 / expected).sum()
    freedom = torch.tensor(table.shape[1] - 1, dtype=torch.float64)
    chance = torch.special.gammaincc(freedom / 2, statistic / 2).item()
    if chance >= CHANCE:
        return None
    return f"chi-squared {statistic:.1f} over {table.shape[1]} values, chance {chance:.1e}"
