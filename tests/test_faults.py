"""Faults while programs run: memory that is not there, executions that fail, indices out of range, panics.
Each raises what CPU PyTorch raises, or says what happened, and the process goes on.
"""

from __future__ import annotations

import re
import threading

import pytest
import torch
from child_process import run_with_injection

MIB = 2**20


@pytest.fixture
def limit(tpu):
    """Set how many more bytes tensors may take."""

    def more(count: int) -> None:
        tpu.set_memory_limit(tpu.memory_allocated() + count)

    yield more
    tpu.set_memory_limit(None)


def test_out_of_memory_says_what_was_asked_and_what_there_is(tpu, limit):
    held = torch.ones(MIB, device="tpu")
    limit(3 * MIB)
    with pytest.raises(torch.OutOfMemoryError) as caught:
        torch.ones(MIB, device="tpu")
    message = str(caught.value)
    for part in (
        "tpu:0 is out of memory: tried to allocate 4.00 MiB",
        "3.00 MiB free of",
        "the limit that was set",
        "largest live tensors: 4.00 MiB",
        "torch.tpu.set_per_process_memory_fraction",
    ):
        assert part in message
    before = tpu.memory_allocated()
    del held
    assert tpu.memory_allocated() == before - 4 * MIB
    assert torch.ones(MIB, device="tpu").sum().item() == MIB


@pytest.mark.parametrize(
    "use",
    [
        lambda x: x + 1,
        lambda x: x.clone(),
        lambda x: torch.empty_like(x),
        lambda x: x.cpu().to("tpu"),
        lambda x: torch.cat([x, x]),
        lambda x: torch.randn(MIB, device="tpu"),
        lambda x: x[::2].contiguous().repeat(2),
        lambda x: torch.empty(0, device="tpu").resize_(MIB),
        lambda x: torch.empty(0, device="tpu").untyped_storage().resize_(4 * MIB),
    ],
)
def test_every_way_to_allocate_raises_and_recovers(tpu, limit, use):
    x = torch.ones(MIB, device="tpu")
    limit(MIB)
    before = tpu.memory_allocated()
    with pytest.raises(torch.OutOfMemoryError, match="largest live tensors"):
        use(x)
    assert tpu.memory_allocated() == before
    limit(64 * MIB)
    use(x)
    assert x.sum().item() == MIB


def test_an_in_place_operator_survives_running_out(tpu, limit):
    x = torch.ones(MIB, device="tpu")
    limit(MIB)
    with pytest.raises(torch.OutOfMemoryError):
        x += torch.ones(MIB, device="tpu")
    assert x.sum().item() == MIB


def test_the_fraction_is_a_limit(tpu):
    total = tpu.mem_get_info()[1]
    tpu.set_per_process_memory_fraction(0.5)
    try:
        assert tpu.get_per_process_memory_fraction() == pytest.approx(0.5)
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(total // 2 + MIB, dtype=torch.uint8, device="tpu")
    finally:
        tpu.set_per_process_memory_fraction(1.0)
    assert tpu.get_per_process_memory_fraction() == 1.0


def test_injected_failures():
    done = run_with_injection(
        """
        def fails(kind, code, use, exception, *words):
            inject(kind, 1, code)
            try:
                use()
            except exception as error:
                assert type(error) is exception, type(error)
                for word in words:
                    assert word in str(error), (word, str(error))
            else:
                raise AssertionError(f"{kind}: no error")
            inject(kind, 0, code)

        x = torch.ones(1000, device="tpu")
        oom = torch.OutOfMemoryError
        (x + 1).sum().item()
        fails("execute", 8, lambda: x + 1, oom, "out of memory", "aten::add", "3.91 KiB for results",
              "free of", "largest live tensors", "RESOURCE_EXHAUSTED")
        assert (x + 1).sum().item() == 2000
        fails("execute", 13, lambda: x + 1, RuntimeError, "aten::add", "execution failed", "INTERNAL")
        fails("upload", 8, lambda: torch.zeros(1000).to("tpu"), oom, "tried to upload 3.91 KiB", "free of")
        fails("upload", 13, lambda: torch.zeros(1000).to("tpu"), RuntimeError, "transfer failed", "INTERNAL")
        fails("download", 13, lambda: x.cpu(), RuntimeError, "INTERNAL")
        fails("compile", 13, lambda: x.mul(x).tanh(), RuntimeError, "compilation failed", "INTERNAL")
        fails("compile", 8, lambda: x.exp(), oom, "aten::exp")
        # A compilation that failed is tried again.
        assert x.exp().sum().item() > 2700
        assert x.cpu().sum().item() == 1000

        # In-place operators that never ran leave their tensor alone.
        x.add_(1)
        fails("execute", 13, lambda: x.add_(1), RuntimeError, "aten::add_")
        assert x.sum().item() == 2000

        # One that failed after it took its donated buffer cannot: every tensor over it says so.
        view, other = x[:10], x.clone()
        x.add_(0)  # no longer shares its buffer with its clone
        fails("finish", 13, lambda: x.add_(1), RuntimeError, "aten::add_", "INTERNAL")
        uses = [lambda: x.cpu(), lambda: view + 1, lambda: x.sum(), lambda: x.add_(1), lambda: x[3].item()]
        for use in uses:
            try:
                use()
            except RuntimeError as error:
                assert "aten::add_" in str(error) and "INTERNAL" in str(error), error
            else:
                raise AssertionError("a lost tensor was read")
        assert other.sum().item() == 2000
        x.copy_(torch.ones(1000))
        assert (x.sum() + view.sum()).item() == 1010
        # A buffer with another reader is not donated, so nothing is lost.
        twin = x.detach().clone()
        fails("finish", 13, lambda: x.add_(1), RuntimeError, "aten::add_")
        assert twin.sum().item() == x.sum().item() == 1000
        torch.tpu.synchronize()
        print("survived")
        """,
        env={"TORCH_PJRT_CACHE_DIR": ""},
    )
    assert done.stdout == "survived\n"


def index(*values):
    return torch.tensor(values)


X = torch.arange(12.0).reshape(3, 4)
ROWS = torch.ones(2, 4)
OUT_OF_RANGE = {
    "index": lambda x, to: x[to(index(0, 7))],
    "index negative": lambda x, to: x[to(index(0, -5))],
    "index on the host": lambda x, to: x[index(0, 9)],
    "index of two": lambda x, to: x[to(index(0)), to(index(9))],
    "embedding": lambda x, to: torch.nn.functional.embedding(to(index(0, 7)), x),
    "embedding negative": lambda x, to: torch.nn.functional.embedding(to(index(-1)), x),
    "index_select": lambda x, to: torch.index_select(x, 0, to(index(0, 7))),
    "gather": lambda x, to: torch.gather(x, 1, to(index(0, 4, 1))[:, None]),
    "take": lambda x, to: torch.take(x, to(index(12))),
    "take negative": lambda x, to: torch.take(x, to(index(-13))),
    "scatter": lambda x, to: torch.scatter(x, 1, to(index(0, 4, 1))[:, None], 1.0),
    "scatter_": lambda x, to: x.clone().scatter_(1, to(index(0, 4, 1))[:, None], x),
    "scatter_add_": lambda x, to: x.clone().scatter_add_(1, to(index(0, 4, 1))[:, None], x),
    "scatter_reduce_": lambda x, to: x.clone().scatter_reduce_(1, to(index(0, 4, 1))[:, None], x, "amax"),
    "index_put_": lambda x, to: x.clone().index_put_((to(index(0, 7)),), to(ROWS)),
    "index_put_ accumulate": lambda x, to: x.clone().index_put_(
        (to(index(0, 7)),), to(ROWS), accumulate=True
    ),
    "assignment": lambda x, to: x.clone().__setitem__(to(index(0, 7)), to(ROWS)),
    "index_add_": lambda x, to: x.clone().index_add_(0, to(index(0, 7)), to(ROWS)),
    "index_copy_": lambda x, to: x.clone().index_copy_(0, to(index(0, 7)), to(ROWS)),
    "index_fill_": lambda x, to: x.clone().index_fill_(0, to(index(0, 7)), 1.0),
    "put_": lambda x, to: x.clone().put_(to(index(12)), to(torch.ones(1))),
    "nll_loss": lambda x, to: torch.nn.functional.nll_loss(x, to(index(0, 1, 9))),
    "cross_entropy": lambda x, to: torch.nn.functional.cross_entropy(x, to(index(0, 1, 9))),
    "one_hot": lambda x, to: torch.nn.functional.one_hot(to(index(0, 7)), 3),
    "integer": lambda x, to: x[7],
    "select": lambda x, to: x.select(0, 5),
    "division": lambda x, to: to(index(1, 2)) // to(index(0, 1)),
    "remainder": lambda x, to: to(index(1, 2)) % to(index(0, 1)),
}


@pytest.mark.parametrize("deferred", [False, True], ids=["at once", "deferred"])
@pytest.mark.parametrize("name", OUT_OF_RANGE)
def test_out_of_range(tpu, name, deferred):
    """The same exception type as on the CPU: at the call, or when anything is next read."""
    use = OUT_OF_RANGE[name]
    x = X.to("tpu")
    busy = torch.ones(600, 600, device="tpu")

    def on_tpu() -> None:
        y = busy
        for _ in range(6 if deferred else 0):
            y = y @ y * 1e-3
        use(x, lambda tensor: tensor.to("tpu"))
        (x + 1).cpu()

    expected = raised(lambda: use(X, lambda tensor: tensor))
    assert expected is not None
    assert type(raised(on_tpu)) is type(expected)
    assert torch.equal(x.cpu(), X)
    tpu.synchronize()


def raised(function) -> Exception | None:
    try:
        function()
    except Exception as error:
        return error
    return None


def test_a_deferred_error_names_operator_and_line(tpu):
    x = X.to("tpu")
    busy = torch.ones(800, 800, device="tpu")
    bad = index(0, 7).to("tpu")
    for _ in range(20):
        busy = busy @ busy * 1e-3

    def use() -> None:
        x[bad]  # the line
        tpu.synchronize()

    with pytest.raises(IndexError) as caught:
        use()
    message = str(caught.value)
    if "called at" in message:  # else it was ready at once, and the traceback shows the line
        assert re.search(r"aten::index\S* called at .*test_faults\.py:\d+ in use", message)


def test_what_a_failed_check_would_have_written_is_as_before(tpu):
    x = X.to("tpu")
    kept = X.to("tpu")
    assert (
        type(raised(lambda: (kept.index_fill_(0, index(0, 7).to("tpu"), 0.0), tpu.synchronize())))
        is IndexError
    )
    assert torch.equal(kept.cpu(), X)
    assert torch.equal(kept.index_fill_(0, index(0).to("tpu"), 0.0).cpu(), X.index_fill(0, index(0), 0.0))
    assert torch.equal(x.cpu(), X)


def test_tensors_of_two_devices(tpu):
    x = torch.ones(2, device="tpu")
    for use in (
        lambda: x + torch.ones(2),
        lambda: torch.ones(2) + x,
        lambda: torch.cat([x, torch.ones(2)]),
        lambda: x.reshape(1, 2) @ torch.ones(2, 2),
        lambda: torch.nn.functional.linear(torch.ones(1, 2), x.reshape(1, 2)),
        lambda: torch.where(x > 0, x, torch.ones(2)),
    ):
        with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device") as caught:
            use()
        assert "tpu:0" in str(caught.value)
        assert "cpu" in str(caught.value)
    assert (x + torch.tensor(1.0)).sum().item() == 4  # a 0-dim CPU tensor is a number


def test_a_panic_is_an_exception(tpu, capfd):
    from torch_pjrt import _core

    x = torch.ones(3, 17, device="tpu")
    _core._panic_at_next_build()
    with pytest.raises(RuntimeError, match="internal error in torch-pjrt, please report it: a test asked"):
        x.add(1).mul(x).sub(2).div(x).sinh()
    assert "panicked" in capfd.readouterr().err
    assert (x + 1).sum().item() == 102


def test_threads_give_the_same_values_as_one(tpu):
    torch.manual_seed(0)
    data = [torch.randn(16, 16) for _ in range(4)]
    failures = []

    def work(x: torch.Tensor, start: threading.Barrier) -> None:
        try:
            start.wait(60)
            y = x.to("tpu")
            for i in range(100):
                y = torch.tanh(y @ y) + i % 3
                y[i % 16] *= 0.5
                if i % 25 == 0:
                    y.sum().item()
            expected = x
            for i in range(100):
                expected = torch.tanh(expected @ expected) + i % 3
                expected[i % 16] *= 0.5
            torch.testing.assert_close(y.cpu(), expected, rtol=1e-3, atol=1e-3)
        except BaseException as error:
            failures.append(error)

    start = threading.Barrier(len(data))
    threads = [threading.Thread(target=work, args=(x, start), daemon=True) for x in data]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads), "deadlock"
    assert not failures, failures[0]


def test_threads_share_a_tensor(tpu):
    x = torch.zeros(64, device="tpu")
    lock = threading.Lock()
    failures = []

    def work() -> None:
        try:
            for _ in range(50):
                with lock:
                    x.add_(1)
                assert (x * 0).sum().item() == 0
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not failures, failures[0]
    assert x.sum().item() == 64 * 200


def test_backward_in_many_threads(tpu):
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    on_tpu = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)).to("tpu")
    on_tpu.load_state_dict(model.state_dict())
    inputs = [torch.randn(5, 8) for _ in range(4)]
    gradients: list = [None] * 4

    def work(i: int) -> None:
        x = inputs[i].to("tpu").requires_grad_()
        gradients[i] = torch.autograd.grad(on_tpu(x).sum(), x)[0].cpu()

    threads = [threading.Thread(target=work, args=(i,), daemon=True) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    for x, gradient in zip(inputs, gradients, strict=True):
        x = x.clone().requires_grad_()
        torch.testing.assert_close(gradient, torch.autograd.grad(model(x).sum(), x)[0])
