"""The tracer gives graphs that compute what the operator does; replayed on the CPU, no device needed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from graph_replay import call, for_core, replay
from torch_pjrt import _decompose, _dispatch_state, _recorder
from torch_pjrt._graph_encoding import Untraceable, find_operator

# Operators that these tests take as having a lowering.
NATIVE = frozenset(Path(__file__).with_name("lowered_operators.txt").read_text().split())

torch.manual_seed(0)
X = torch.randn(2, 6, 5, 4)
M = torch.randn(5, 7)
IMAGE = torch.randn(2, 3, 8, 8)
LABELS = torch.tensor([0, 3, 6, 1, 2])
B = torch.randn(5, 7) > 0

CASES = [
    ("aten::logsumexp.default", [M, [1], False]),
    ("aten::logsumexp.default", [M, [0, 1], True]),
    ("aten::native_layer_norm.default", [X, [5, 4], torch.randn(5, 4), torch.randn(5, 4), 1e-5]),
    ("aten::native_group_norm.default", [X, torch.randn(6), torch.randn(6), 2, 6, 20, 3, 1e-5]),
    ("aten::native_batch_norm.default", [X, None, None, torch.rand(6), torch.rand(6) + 0.5, True, 0.1, 1e-5]),
    ("aten::_softmax.default", [M, 1, False]),
    ("aten::_log_softmax.default", [M, 0, False]),
    ("aten::_softmax_backward_data.default", [M, M.softmax(1), 1, torch.float32]),
    ("aten::gelu.default", [M, "none"]),
    ("aten::gelu.default", [M, "tanh"]),
    ("aten::gelu_backward.default", [M, M, "none"]),
    ("aten::nll_loss_forward.default", [M.log_softmax(1), LABELS, torch.rand(7), 1, -100]),
    ("aten::nll_loss2d_forward.default", [IMAGE, torch.randint(0, 3, (2, 8, 8)), None, 1, -100]),
    ("aten::silu.default", [M]),
    ("aten::mish.default", [M]),
    ("aten::hardswish.default", [M]),
    ("aten::softplus.default", [M, 1.0, 20.0]),
    ("aten::elu.default", [M, 1.0, 1.0, 1.0]),
    ("aten::leaky_relu.default", [M, 0.1]),
    ("aten::threshold.default", [M, 0.5, 9.0]),
    ("aten::hardtanh.default", [M, -0.5, 0.5]),
    ("aten::glu.default", [torch.randn(4, 6), 1]),
    ("aten::smooth_l1_loss.default", [M, M.flip(0), 1, 1.0]),
    ("aten::huber_loss.default", [M, M.flip(0), 1, 0.7]),
    ("aten::mse_loss.default", [M, M.flip(0), 1]),
    ("aten::binary_cross_entropy.default", [M.sigmoid(), B.float(), None, 1]),
    ("aten::binary_cross_entropy_with_logits.default", [M, B.float(), None, None, 1]),
    ("aten::soft_margin_loss.default", [M, M.sign(), 1]),
    ("aten::linalg_vector_norm.default", [M, 2.0, [1], False, None]),
    ("aten::norm.ScalarOpt_dim", [M, 2.0, [1], False]),
    ("aten::var.correction", [M, [1]]),
    ("aten::std.correction", [M, [1]]),
    ("aten::var_mean.correction", [M, [0]]),
    ("aten::addcmul.default", [M, M, M]),
    ("aten::addcdiv.default", [M, M, M.abs() + 1]),
    ("aten::lerp.Scalar", [M, M.flip(0), 0.3]),
    ("aten::lerp.Tensor", [M, M.flip(0), M.sigmoid()]),
    ("aten::clamp.default", [M, -0.3, 0.4]),
    ("aten::clamp_min.default", [M, 0.1]),
    ("aten::masked_fill.Scalar", [M, B, -1.0]),
    ("aten::masked_fill.Tensor", [M, B, torch.tensor(2.0)]),
    ("aten::tril.default", [M, -1]),
    ("aten::triu.default", [M, 1]),
    ("aten::trace.default", [M]),
    ("aten::index_select.default", [M, 0, torch.tensor([3, 0, 3])]),
    ("aten::index_add.default", [M, 0, torch.tensor([1, 1]), torch.ones(2, 7)]),
    ("aten::index_fill.int_Scalar", [M, 1, torch.tensor([0, 2]), 5.0]),
    ("aten::index_copy.default", [M, 0, torch.tensor([4, 1]), torch.ones(2, 7)]),
    ("aten::embedding.default", [M, torch.tensor([[0, 4], [2, 2]])]),
    (
        "aten::embedding_dense_backward.default",
        [torch.randn(2, 2, 7), torch.tensor([[0, 4], [2, 2]]), 5, -1, False],
    ),
    ("aten::select_scatter.default", [M, torch.ones(7), 0, 2]),
    ("aten::slice_scatter.default", [M, torch.ones(5, 2), 1, 1, 5, 2]),
    ("aten::diagonal_scatter.default", [M, torch.ones(5)]),
    ("aten::select_backward.default", [torch.ones(7), [5, 7], 0, 1]),
    ("aten::slice_backward.default", [torch.ones(5, 2), [5, 7], 1, 0, 4, 2]),
    ("aten::unfold_backward.default", [torch.randn(5, 3, 3), [5, 7], 1, 3, 2]),
    ("aten::upsample_nearest2d.vec", [IMAGE, [16, 16], None]),
    ("aten::upsample_bilinear2d.vec", [IMAGE, [5, 6], False, None]),
    ("aten::upsample_bicubic2d.vec", [IMAGE, [5, 6], False, None]),
    ("aten::reflection_pad2d.default", [IMAGE, [1, 2, 1, 1]]),
    ("aten::replication_pad2d.default", [IMAGE, [1, 2, 1, 1]]),
    ("aten::constant_pad_nd.default", [M, [1, 2, 0, 3], 1.5]),
    ("aten::pixel_shuffle.default", [torch.randn(1, 8, 3, 3), 2]),
    ("aten::im2col.default", [IMAGE, [3, 3], [1, 1], [1, 1], [2, 2]]),
    ("aten::col2im.default", [torch.randn(2, 27, 16), [8, 8], [3, 3], [1, 1], [1, 1], [2, 2]]),
    ("aten::grid_sampler_2d.default", [IMAGE, torch.rand(2, 4, 4, 2) * 2 - 1, 0, 0, False]),
    ("aten::affine_grid_generator.default", [torch.randn(2, 2, 3), [2, 3, 4, 5], False]),
    ("aten::linear.default", [torch.randn(3, 7), torch.randn(4, 7), torch.randn(4)]),
    ("aten::addmv.default", [torch.randn(5), M, torch.randn(7)]),
    ("aten::baddbmm.default", [torch.randn(2, 3, 5), torch.randn(2, 3, 4), torch.randn(2, 4, 5)]),
    ("aten::addr.default", [M, torch.randn(5), torch.randn(7)]),
    ("aten::cross_entropy_loss.default", [M, LABELS, None, 1, -100, 0.1]),
    ("aten::nan_to_num.default", [torch.tensor([float("nan"), float("inf"), 1.0]), None, None, None]),
    ("aten::heaviside.default", [M, torch.tensor(0.5)]),
    ("aten::xlogy.Tensor", [M.abs(), M.abs()]),
    ("aten::sgn.default", [M]),
    ("aten::sinc.default", [M]),
    ("aten::logit.default", [M.sigmoid(), 1e-3]),
    ("aten::frac.default", [M]),
    ("aten::rot90.default", [M, 1, [0, 1]]),
    ("aten::roll.default", [M, [2], [1]]),
    ("aten::repeat.default", [M, [2, 3]]),
    ("aten::tile.default", [M, [2, 1]]),
    ("aten::stack.default", [[M, M + 1], 1]),
    ("aten::split_with_sizes_copy.default", [M, [2, 5], 1]),
    ("aten::meshgrid.indexing", [[torch.arange(3), torch.arange(4)], "ij"]),
    ("aten::eye.m", [4, 5]),
    ("aten::arange.start_step", [1, 10, 2]),
    ("aten::linspace.default", [0.0, 1.0, 7]),
    ("aten::zeros_like.default", [M]),
    ("aten::new_zeros.default", [M, [3]]),
    ("aten::count_nonzero.dim_IntList", [B, [1]]),
    ("aten::all.dim", [B, 1, False]),
    ("aten::aminmax.default", [M]),
    ("aten::dist.default", [M, M.flip(1), 2.0]),
    ("aten::cdist.default", [M, M.flip(0), 2.0, None]),
    ("aten::pairwise_distance.default", [M, M.flip(0)]),
    ("aten::cosine_similarity.default", [M, M.flip(0), 1]),
    ("aten::kl_div.default", [M, M.softmax(1), 1]),
    ("aten::isin.Tensor_Tensor", [LABELS, torch.tensor([1, 2])]),
    ("aten::block_diag.default", [[torch.ones(2, 3), torch.ones(1, 2)]]),
    ("aten::bitwise_and.Scalar", [LABELS, 1]),
    ("aten::_foreach_addcdiv.Scalar", [[M, X], [M, X], [M.abs() + 1, X.abs() + 1], 0.5]),
    ("aten::_foreach_lerp.Scalar", [[M, X], [M + 1, X + 1], 0.5]),
    ("aten::_unsafe_index.Tensor", [M, [None, torch.tensor([0, 2])]]),
    ("aten::adaptive_avg_pool2d.default", [IMAGE, [2, 3]]),
    ("aten::scaled_dot_product_attention.default", [torch.randn(2, 2, 5, 4)] * 3),
    ("aten::histc.default", [M, 4, -1.0, 1.0]),
]


def check(op: str, args, rtol: float = 2e-5, atol: float = 2e-5) -> tuple:
    overload = find_operator(op)
    given, tensors = for_core(overload, args)
    graph = _decompose.trace_call(op, given, NATIVE)
    got = replay(graph, tensors)
    want = _recorder.flatten(call(overload, args))
    assert len(got) == len(want)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=rtol, atol=atol, equal_nan=True)
    return graph


@pytest.mark.parametrize("op,args", CASES, ids=[f"{i}-{op}" for i, (op, _) in enumerate(CASES)])
def test_graph_computes_what_the_operator_does(op, args):
    check(op, args)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64, torch.bool])
def test_result_dtype_is_kept(dtype):
    check("aten::logsumexp.default", [M.to(dtype), [1], False], rtol=2e-2, atol=2e-2)


def test_noncontiguous_arguments():
    check("aten::native_layer_norm.default", [X.transpose(1, 3), [5, 6], None, None, 1e-5])
    check("aten::index_add.default", [M.t(), 0, torch.tensor([1, 1]), torch.ones(2, 5)])


def trace_function(function, *tensors):
    """Graph of a Python function, through a private operator."""
    recorder = _recorder.Recorder(NATIVE)
    with _dispatch_state.clean_dispatch_state():
        metas = [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="meta") for t in tensors]
        for slot, meta in enumerate(metas):
            recorder.add_input(meta, slot)
        with recorder, _dispatch_state.KeepConstants():
            results = function(*metas)
        outputs = [recorder.result(item) for item in _recorder.flatten(results)]
    return _decompose.without_dead_nodes(recorder.inputs, recorder.nodes, outputs)


def same_as_eager(function, *tensors):
    graph = trace_function(function, *[t.clone() for t in tensors])
    got = replay(graph, [t.clone() for t in tensors])
    want = _recorder.flatten(function(*[t.clone() for t in tensors]))
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b)
    return graph


def write_through_chain(x):
    y = x * 1
    y[1:4].select(1, 2).fill_(7)
    view = y.t()[2:]
    y[0, 0] = 5
    view[1].mul_(2)
    return y, view + 1, view


def write_to_empty(x):
    out = torch.empty(6, 7, device=x.device)
    out[:5] = x
    out[5:] = x[:1]
    return out


def split_views(x):
    y = x + 0
    a, b = y.split([3, 4], dim=1)
    a.add_(1)
    b.copy_(a[:, :1])
    for row in y.unbind(0):
        row.mul_(2)
    return y, a, b


def metadata_change(x):
    y = x * 2
    z = y.view(-1)
    y.transpose_(0, 1)
    y.unsqueeze_(0)
    y.add_(1)
    return y, z


def constants(x):
    table = torch.tensor([1.0, 2, 3, 4, 5, 6, 7], device=x.device)
    table[0] = 10
    return x * table, x[[0, 2]], x[:, torch.tensor([1, 1])]


def out_argument(x):
    out = torch.empty_like(x)
    torch.add(x, 1, out=out[:])
    torch.mul(out, 3, out=out)
    return out


def complex_conjugate(x):
    z = torch.complex(x, x + 1)
    return torch.view_as_real(torch.conj(z) * z + z.conj().t().t()), z.conj().imag


def diagonal_write(x):
    y = x.clone()
    y.diagonal().zero_()
    y.view(7, 5)[1] += 3
    y.as_strided((2, 2), (7, 1), 3).fill_(1)
    return y


@pytest.mark.parametrize(
    "function",
    [
        write_through_chain,
        write_to_empty,
        split_views,
        metadata_change,
        constants,
        out_argument,
        complex_conjugate,
        diagonal_write,
    ],
)
def test_writes_inside_a_decomposition_are_followed(function):
    same_as_eager(function, M)


def test_reading_memory_that_nothing_wrote_is_refused():
    with pytest.raises(Untraceable, match="not written"):
        trace_function(lambda x: x + torch.empty_like(x), M)


def test_data_dependence_is_refused():
    for op, args in [
        ("aten::nonzero.default", [M]),
        ("aten::equal.default", [M, M]),
        ("aten::is_nonzero.default", [torch.tensor(1.0)]),
        ("aten::masked_select.default", [M, B]),
    ]:
        given, _ = for_core(find_operator(op), args)
        graph, _, reason = _trace(op, given)
        assert graph is None
        assert reason


def _trace(
    op, given, native=NATIVE - {"aten::nonzero.default", "aten::equal.default", "aten::masked_select.default"}
):
    old, _decompose._native = _decompose._native, frozenset(native)
    try:
        return _decompose.trace(op, given)
    finally:
        _decompose._native = old


def test_missing_operators_are_named():
    given, _ = for_core(find_operator("aten::mish.default"), [M])
    graph, missing, reason = _trace("aten::mish.default", given, NATIVE - {"aten::tanh.default"})
    assert graph is None
    assert missing == ["aten::tanh.default"]
    assert "aten::tanh.default" in reason


def test_wrapped_number_takes_part_in_promotion_by_category_only():
    x = torch.tensor([1, 2, 3], dtype=torch.int32)
    overload = find_operator("aten::xlogy.Tensor")
    given, _ = for_core(overload, [x, x])
    graph = _decompose.trace_call("aten::xlogy.Tensor", [given[0], 2.0], NATIVE)
    torch.testing.assert_close(replay(graph, [x])[0], torch.xlogy(x, 2.0))


def test_user_modes_do_not_reach_the_trace():
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = []

    class Spy(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    given, _ = for_core(find_operator("aten::logsumexp.default"), [M, [1], False])
    with Spy(), torch.device("cpu"), torch.autocast("cpu", torch.bfloat16):
        graph = _decompose.trace_call("aten::logsumexp.default", given, NATIVE)
    assert not seen
    assert all(meta[0] == 6 for _, _, metas in graph[1] for meta in metas if meta[0] not in (11,))


def test_state_is_restored_after_an_error():
    given, _ = for_core(find_operator("aten::nonzero.default"), [M])
    with torch.device("meta"):
        _trace("aten::nonzero.default", given)
        assert torch.empty(1).device.type == "meta"
    assert torch.is_grad_enabled()
    assert (torch.randn(2, requires_grad=True) * 2).requires_grad


def test_mutable_operator_without_a_functional_twin_of_its_own_returns_new_values():
    # In-place at the top: new values of what is written come first.
    given, tensors = for_core(find_operator("aten::addcmul_.default"), [M.clone(), M, M])
    graph = _decompose.trace_call("aten::addcmul_.default", given, NATIVE)
    torch.testing.assert_close(replay(graph, tensors)[0], torch.addcmul(M, M, M))
