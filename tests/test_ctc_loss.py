"""CTC loss on the device against the CPU."""

from __future__ import annotations

import pytest
import torch
from gradients import compare

pytestmark = pytest.mark.usefixtures("no_fallback")
F = torch.nn.functional

INPUTS, TARGETS = (9, 7, 8, 3), (4, 0, 3, 2)


def log_probs(frames=9, batch=4, labels=5, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(frames, batch, labels, generator=generator, dtype=dtype)


def targets(blank):
    """Repeated labels need a blank between them; no label is the blank."""
    labels = torch.tensor([[1, 1, 2, 3], [2, 2, 2, 2], [3, 2, 3, 1], [1, 2, 3, 3]])
    return labels if blank == 0 else labels - 1


def loss(blank=0, **options):
    def call(x, labels, inputs, lengths):
        return F.ctc_loss(F.log_softmax(x, -1), labels, inputs, lengths, blank, **options)

    return call


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("blank", [0, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_padded_targets(reduction, blank, dtype):
    lengths = (torch.tensor(INPUTS), torch.tensor(TARGETS))
    compare(loss(blank, reduction=reduction), log_probs(dtype=dtype), targets(blank), *lengths)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_targets_one_after_the_other(dtype):
    rows = [row[:length] for row, length in zip(targets(0), TARGETS, strict=True)]
    compare(loss(), log_probs(), torch.cat(rows).to(dtype), torch.tensor(INPUTS), torch.tensor(TARGETS))


@pytest.mark.parametrize("zero_infinity", [False, True])
def test_targets_that_do_not_fit(zero_infinity):
    lengths = (torch.tensor((2, 7, 0, 0)), torch.tensor((4, 0, 0, 2)))
    options = {"reduction": "none", "zero_infinity": zero_infinity}
    compare(loss(**options), log_probs(), targets(0), *lengths)


def test_no_targets_at_all():
    compare(loss(), log_probs(), targets(0)[:, :0], torch.tensor(INPUTS), torch.zeros(4, dtype=torch.int64))


def test_the_forward_variables_of_the_operator():
    def operator(x, labels):
        return torch.ops.aten._ctc_loss(x.log_softmax(-1), labels, (9, 9, 9, 9), TARGETS)[0]

    compare(operator, log_probs(), targets(0))


def test_other_lengths_run_the_same_program():
    def run(inputs):
        x = log_probs().to("tpu").requires_grad_()
        loss()(x, targets(0).to("tpu"), torch.tensor(inputs), torch.tensor(TARGETS)).backward()
        return x.grad.cpu()

    run(INPUTS)
    with torch.tpu.freeze_compiles():
        run((8, 8, 8, 8))


@pytest.mark.parametrize(
    ("inputs", "lengths", "message"),
    [
        ((9, 7, 8, 10), TARGETS, "input_lengths to have value at most 9"),
        (INPUTS, (5, 0, 3, 2), "size at least 5 at dimension 1"),
        (INPUTS[:3], TARGETS, "input_lengths must be of size batch_size"),
    ],
)
def test_lengths_that_do_not_fit(inputs, lengths, message):
    for device in ("cpu", "tpu"):
        with pytest.raises(RuntimeError, match=message):
            F.ctc_loss(log_probs().to(device), targets(0).to(device), inputs, lengths)


def test_a_target_out_of_range():
    labels = targets(0) + 2
    with pytest.raises(IndexError, match="range of labels"):
        F.ctc_loss(log_probs().to("tpu"), labels.to("tpu"), INPUTS, TARGETS).item()
    # Beyond the end of a target it does not matter.
    labels = torch.where(torch.arange(4) < torch.tensor(TARGETS)[:, None], targets(0), 99)
    compare(loss(), log_probs(), labels, torch.tensor(INPUTS), torch.tensor(TARGETS))


def test_half_precision_is_refused():
    for device in ("cpu", "tpu"):
        with pytest.raises(NotImplementedError, match="ctc_loss"):
            F.ctc_loss(log_probs(dtype=torch.bfloat16).to(device), targets(0).to(device), INPUTS, TARGETS)
