"""Optimizers in single-tensor, foreach and fused form, gradient clipping, and what training steps need beside them."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler as schedulers

pytestmark = pytest.mark.usefixtures("no_fallback")

FORMS = {"single": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}
OPTIMIZERS = {
    "adamw": (torch.optim.AdamW, {"lr": 1e-2, "weight_decay": 0.1}),
    "adam": (torch.optim.Adam, {"lr": 1e-2}),
    "adam-l2": (torch.optim.Adam, {"lr": 1e-2, "weight_decay": 0.1}),
    "adam-amsgrad": (torch.optim.Adam, {"lr": 1e-2, "amsgrad": True}),
    "adam-maximize": (torch.optim.Adam, {"lr": 1e-2, "maximize": True}),
    "sgd": (torch.optim.SGD, {"lr": 1e-2}),
    "sgd-momentum": (
        torch.optim.SGD,
        {"lr": 1e-2, "momentum": 0.9, "dampening": 0.1, "weight_decay": 0.1},
    ),
    "sgd-nesterov": (torch.optim.SGD, {"lr": 1e-2, "momentum": 0.9, "nesterov": True}),
    "sgd-maximize": (torch.optim.SGD, {"lr": 1e-2, "momentum": 0.9, "maximize": True}),
}


def parameters(device: str, dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    """A matrix, a vector, a transposed matrix."""
    torch.manual_seed(0)
    tensors = [torch.randn(3, 4), torch.randn(5), torch.randn(4, 3).T]
    return [nn.Parameter(tensor.to(device, dtype)) for tensor in tensors]


def set_gradients(params: list[nn.Parameter], step: int) -> None:
    """Of the parameters' strides, as autograd makes them; the CPU's fused forms rely on it."""
    torch.manual_seed(step + 1)
    for p in params:
        p.grad = torch.empty_like(p).copy_(torch.randn(p.shape))


def updated(
    optimizer, options, device: str, dtype: torch.dtype = torch.float32, steps: int = 4
) -> tuple[list, list]:
    """Parameters and the optimizer's state after some steps, on the CPU."""
    params = parameters(device, dtype)
    opt = optimizer(params, **options)
    for step in range(steps):
        set_gradients(params, step)
        opt.param_groups[0]["lr"] *= 0.9
        opt.step()
    states = [opt.state.get(p, {}) for p in params]
    tensors = [[v.cpu() for v in state.values() if isinstance(v, torch.Tensor)] for state in states]
    return [p.detach().cpu() for p in params], tensors


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_are_those_of_the_cpu(name, form):
    optimizer, options = OPTIMIZERS[name]
    options = options | FORMS[form]
    want, want_states = updated(optimizer, options, "cpu")
    got, got_states = updated(optimizer, options, "tpu")
    torch.testing.assert_close(got, want)
    assert [len(state) for state in got_states] == [len(state) for state in want_states]
    for got_state, want_state in zip(got_states, want_states, strict=True):
        torch.testing.assert_close(got_state, want_state)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["adamw", "sgd-momentum"])
def test_steps_in_bfloat16(name, form):
    """Against float64: CPU kernels of half types round numbers such as `alpha` that the device, like CUDA, does not.

    Each of the four steps rounds the parameter and what it is computed from: three units in the last place of a
    number around 1, 2^-8 each.
    """
    optimizer, options = OPTIMIZERS[name]
    options = options | FORMS[form]
    want, _ = updated(optimizer, options, "cpu", torch.float64)
    got, _ = updated(optimizer, options, "tpu", torch.bfloat16)
    torch.testing.assert_close([p.double() for p in got], want, rtol=3 * 2**-8, atol=2**-8)


def test_foreach_is_the_default():
    optimizer = torch.optim.AdamW(parameters("tpu"))
    set_gradients(optimizer.param_groups[0]["params"], 0)
    torch.tpu.reset_stats()
    optimizer.step()
    # A form that goes over the parameters one by one runs some ten operators for each of the four.
    assert torch.tpu.stats()["executions"] < 30


@pytest.mark.parametrize("name", ["adamw", "sgd-momentum"])
def test_a_changed_learning_rate_compiles_nothing(name):
    optimizer, options = OPTIMIZERS[name]
    for form in FORMS.values():
        params = parameters("tpu")
        opt = optimizer(params, **options | form)
        for step in range(4):
            set_gradients(params, step)
            opt.param_groups[0]["lr"] = 0.01 / (step + 1)
            with torch.tpu.freeze_compiles(step > 1):
                opt.step()


@pytest.mark.parametrize("name", ["adamw", "sgd-momentum"])
def test_a_learning_rate_that_is_a_tensor(name):
    optimizer, options = OPTIMIZERS[name]
    for form in ("foreach", "fused"):
        results = []
        for device in ("cpu", "tpu"):
            params = parameters(device)
            lr = torch.tensor(0.01, device=device)
            # As on CUDA, foreach takes a tensor only where it may be captured.
            extra = {"capturable": True} if name == "adamw" and (form, device) == ("foreach", "tpu") else {}
            form_options = {"foreach": False} if (form, device) == ("foreach", "cpu") else FORMS[form]
            opt = optimizer(params, **options | form_options | extra | {"lr": lr})
            for step in range(3):
                set_gradients(params, step)
                opt.step()
            results.append([p.detach().cpu() for p in params])
        torch.testing.assert_close(results[1], results[0])


SCHEDULERS = {
    "step": lambda opt: schedulers.StepLR(opt, 2, 0.5),
    "multi-step": lambda opt: schedulers.MultiStepLR(opt, [1, 3], 0.5),
    "lambda": lambda opt: schedulers.LambdaLR(opt, lambda epoch: 0.9**epoch),
    "multiplicative": lambda opt: schedulers.MultiplicativeLR(opt, lambda epoch: 0.9),
    "constant": lambda opt: schedulers.ConstantLR(opt, 0.5, 2),
    "linear": lambda opt: schedulers.LinearLR(opt, 0.5, total_iters=3),
    "exponential": lambda opt: schedulers.ExponentialLR(opt, 0.9),
    "polynomial": lambda opt: schedulers.PolynomialLR(opt, 4, 2.0),
    "cosine": lambda opt: schedulers.CosineAnnealingLR(opt, 3),
    "cosine-restarts": lambda opt: schedulers.CosineAnnealingWarmRestarts(opt, 2),
    "one-cycle": lambda opt: schedulers.OneCycleLR(opt, 0.1, total_steps=6),
    "cyclic": lambda opt: schedulers.CyclicLR(opt, 0.01, 0.1, 2),
    "plateau": lambda opt: schedulers.ReduceLROnPlateau(opt, patience=0),
    "sequential": lambda opt: schedulers.SequentialLR(
        opt, [schedulers.LinearLR(opt, 0.1, total_iters=2), schedulers.ExponentialLR(opt, 0.9)], [2]
    ),
    "chained": lambda opt: schedulers.ChainedScheduler(
        [schedulers.ConstantLR(opt, 0.5, 2), schedulers.ExponentialLR(opt, 0.9)]
    ),
    "swa": lambda opt: torch.optim.swa_utils.SWALR(opt, 0.05, 3),
}


@pytest.mark.parametrize("lr", [0.02, "tensor"])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_schedulers(name, lr):
    results = []
    for device in ("cpu", "tpu"):
        params = parameters(device)
        rate = torch.tensor(0.02, device=device) if lr == "tensor" else lr
        opt = torch.optim.SGD(params, lr=rate, momentum=0.9, foreach=device == "tpu")
        scheduler = SCHEDULERS[name](opt)
        rates = []
        for step in range(5):
            set_gradients(params, step)
            opt.step()
            scheduler.step(*([1.0] if name == "plateau" else []))
            rates.append(float(opt.param_groups[0]["lr"]))
        again = SCHEDULERS[name](opt)
        again.load_state_dict(scheduler.state_dict())
        results.append([torch.tensor(rates), *(p.detach().cpu() for p in params)])
    torch.testing.assert_close(results[1], results[0])


@pytest.mark.parametrize(("scale", "found_inf"), [(4.0, 0.0), (4.0, 1.0)])
@pytest.mark.parametrize("name", ["adamw", "sgd-momentum"])
def test_fused_steps_unscale_and_skip(name, scale, found_inf):
    """What `GradScaler` asks of a fused optimizer: gradients divided by the scale, no step where one was infinite."""
    optimizer, options = OPTIMIZERS[name]
    results = []
    for device in ("cpu", "tpu"):
        params = parameters(device)
        opt = optimizer(params, **options, fused=True)
        for step in range(2):
            set_gradients(params, step)
            opt.grad_scale = torch.full((), scale, device=device)
            opt.found_inf = torch.full((), found_inf if step else 0.0, device=device)
            opt.step()
        results.append([[p.detach().cpu(), p.grad.cpu()] for p in params])
    torch.testing.assert_close(results[1], results[0])


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("norm_type", [1.0, 2.0, float("inf")])
def test_clip_grad_norm(norm_type, foreach):
    norms, gradients = [], []
    for device in ("cpu", "tpu"):
        params = parameters(device)
        set_gradients(params, 0)
        norms.append(nn.utils.clip_grad_norm_(params, 0.5, norm_type, foreach=foreach).cpu())
        gradients.append([p.grad.cpu() for p in params])
    torch.testing.assert_close(norms[1], norms[0])
    torch.testing.assert_close(gradients[1], gradients[0])


def test_clip_grad_norm_reads_nothing_on_the_host():
    params = parameters("tpu")
    set_gradients(params, 0)
    torch.tpu.reset_stats()
    nn.utils.clip_grad_norm_(params, 0.5)
    assert torch.tpu.stats()["host_transfers"] == 0


def test_clip_grad_norm_refuses_what_is_not_finite():
    params = parameters("tpu")
    set_gradients(params, 0)
    params[0].grad[0, 0] = float("nan")
    with pytest.raises(RuntimeError, match="non-finite"):
        nn.utils.clip_grad_norm_(params, 0.5, error_if_nonfinite=True)


def test_clip_grad_value():
    results = []
    for device in ("cpu", "tpu"):
        params = parameters(device)
        set_gradients(params, 0)
        nn.utils.clip_grad_value_(params, 0.5)
        results.append([p.grad.cpu() for p in params])
    torch.testing.assert_close(results[1], results[0])


def test_native_dropout():
    x = torch.ones(4, 1000, device="tpu", requires_grad=True)
    y = nn.functional.dropout(x, 0.25)
    kept = y.detach().cpu() != 0
    assert kept.float().mean().item() == pytest.approx(0.75, abs=0.03)
    torch.testing.assert_close(y.detach().cpu(), kept / 0.75)
    y.backward(torch.full_like(y, 2.0))
    torch.testing.assert_close(x.grad.cpu(), kept * 2 / 0.75)
    assert not torch.equal(nn.functional.dropout(x, 0.25).detach().cpu() != 0, kept)
    assert torch.equal(nn.functional.dropout(x, 0.25, training=False), x)
    assert nn.functional.dropout(x, 1.0).eq(0).all()


def run_cell(make, device: str, inputs: list[torch.Tensor], dtype: torch.dtype) -> list[torch.Tensor]:
    torch.manual_seed(0)
    cell = make().to(dtype).to(device)
    inputs = [x.detach().to(dtype).to(device).requires_grad_() for x in inputs]
    hidden = inputs[1] if len(inputs) == 2 else tuple(inputs[1:])
    out = cell(inputs[0], hidden)
    outs = [out] if isinstance(out, torch.Tensor) else list(torch.utils._pytree.tree_leaves(out))
    loss = sum((o * (k + 1)).square().sum() for k, o in enumerate(outs))
    grads = torch.autograd.grad(loss, [*inputs, *cell.parameters()])
    return [t.detach().cpu() for t in (*outs, *grads)]


CELLS = {
    "lstm-cell": (lambda bias: nn.LSTMCell(5, 6, bias=bias), [(3, 5), (3, 6), (3, 6)]),
    "gru-cell": (lambda bias: nn.GRUCell(5, 6, bias=bias), [(3, 5), (3, 6)]),
    "rnn-cell": (lambda bias: nn.RNNCell(5, 6, bias=bias), [(3, 5), (3, 6)]),
    "lstm": (
        lambda bias: nn.LSTM(5, 6, num_layers=2, bias=bias, bidirectional=True),
        [(4, 3, 5), (4, 3, 6), (4, 3, 6)],
    ),
    "lstm-projected": (lambda bias: nn.LSTM(5, 6, bias=bias, proj_size=2), [(4, 3, 5), (1, 3, 2), (1, 3, 6)]),
    "gru": (lambda bias: nn.GRU(5, 6, bias=bias, batch_first=True), [(3, 4, 5), (1, 3, 6)]),
    "rnn": (lambda bias: nn.RNN(5, 6, bias=bias, nonlinearity="relu"), [(4, 3, 5), (1, 3, 6)]),
}


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no-bias"])
@pytest.mark.parametrize("name", CELLS)
def test_recurrent_layers_and_their_gradients(name, bias):
    make, sizes = CELLS[name]
    torch.manual_seed(1)
    inputs = [torch.randn(size) for size in sizes]
    want = run_cell(lambda: make(bias), "cpu", inputs, torch.float32)
    got = run_cell(lambda: make(bias), "tpu", inputs, torch.float32)
    torch.testing.assert_close(got, want)


def test_recurrent_layers_of_packed_sequences():
    torch.manual_seed(0)
    layer = nn.LSTM(5, 6, batch_first=True)
    x, lengths = torch.randn(3, 4, 5), torch.tensor([4, 2, 1])
    results = []
    for device in ("cpu", "tpu"):
        moved = copy.deepcopy(layer).to(device)
        packed = nn.utils.rnn.pack_padded_sequence(x.to(device), lengths, batch_first=True)
        out, _ = nn.utils.rnn.pad_packed_sequence(moved(packed)[0], batch_first=True)
        out.square().sum().backward()
        results.append([out.detach().cpu(), *(p.grad.cpu() for p in moved.parameters())])
    torch.testing.assert_close(results[1], results[0])


def test_histc_of_integers():
    """The CPU has none; CUDA counts them."""
    ids = torch.tensor([0, 3, 1, 1, 2, 7, 3, 0], device="tpu")
    assert torch.histc(ids.int(), 4, 0, 3).tolist() == [2, 2, 1, 2]
    assert torch.histc(ids, 2).tolist() == [7, 1]


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ((0, 0), "is not finite"),
        ((0, float("inf")), "is not finite"),
        ((1, 0), "max must be larger than min"),
    ],
)
def test_histc_refuses(limits, message):
    x = torch.tensor([1.0, float("nan")])
    with pytest.raises(RuntimeError, match=message):
        torch.histc(x, 4, *limits)
    torch.histc(torch.ones(2, device="tpu"), 4, 0, 1)  # the same program, whose limits are operands
    with pytest.raises(RuntimeError, match=message):
        torch.histc(x.to("tpu"), 4, *limits).cpu()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("ends", [[8, 8, 24], [3, 10, 24]])
def test_grouped_mm_and_its_gradients(ends, dtype):
    torch.manual_seed(0)
    rows, weights = torch.randn(24, 16).to(dtype), torch.randn(3, 16, 8).to(dtype)
    grad = torch.randn(24, 8).to(dtype)
    results = []
    for device in ("cpu", "tpu"):
        x, w = (t.detach().to(device).requires_grad_() for t in (rows, weights))
        offsets = torch.tensor(ends, dtype=torch.int32, device=device)
        if device == "tpu":
            torch.tpu.reset_stats()
        y = nn.functional.grouped_mm(x, w, offs=offsets)
        y.backward(grad.to(device))
        if device == "tpu":
            assert torch.tpu.stats()["host_transfers"] == 1  # the gradient given to backward
        results.append([y.detach().cpu(), x.grad.cpu(), w.grad.cpu()])
    assert [t.stride() for t in results[1]] == [t.stride() for t in results[0]]
    torch.testing.assert_close(results[1], results[0])


def test_grouped_mm_of_many_groups_is_exact():
    """More groups than rows in a tile, some empty, and more rows than one tile."""
    torch.manual_seed(0)
    rows, weights = torch.randint(-3, 4, (300, 8)).float(), torch.randint(-3, 4, (200, 8, 4)).float()
    sizes = torch.randint(0, 4, (200,))
    ends = sizes.cumsum(0).clamp(max=300).int()
    ends[-1] = 300
    want = nn.functional.grouped_mm(rows, weights, offs=ends)
    got = nn.functional.grouped_mm(rows.to("tpu"), weights.to("tpu"), offs=ends.to("tpu"))
    assert torch.equal(got.cpu(), want)


def test_every_form_of_the_scaler_unscales():
    """`_amp_foreach_non_finite_check_and_unscale_` and `_amp_update_scale_`, which GradScaler calls."""
    for values in itertools.product([1.0, float("inf")], repeat=2):
        results = []
        for device in ("cpu", "tpu"):
            grads = [torch.tensor([v, 2.0], device=device) for v in values]
            found = torch.zeros(1, device=device)
            torch._amp_foreach_non_finite_check_and_unscale_(grads, found, torch.tensor(0.5, device=device))
            scale, tracker = (
                torch.tensor(8.0, device=device),
                torch.tensor(1, dtype=torch.int32, device=device),
            )
            torch._amp_update_scale_(scale, tracker, found, 2.0, 0.5, 2)
            results.append([t.cpu() for t in (found, scale, tracker, *(g for g in grads))])
        torch.testing.assert_close(results[1], results[0])
