"""What a TPU compiler makes of our programs, without a TPU: libtpu compiles them for `v5e:2x2` and `v6e:2x2`.

`make ahead-of-time` runs this file alone and reports.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable

import pytest
import torch
from flagship_operators import FLAGSHIPS, HLO

V5E, V6E = "v5e:2x2", "v6e:2x2"


@pytest.fixture(scope="module")
def libtpu() -> str:
    from torch_pjrt import _plugins

    library = _plugins.tpu_library()
    assert library, "libtpu is not installed: pip install 'torch-pjrt[tpu]'"
    return library


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "f32"])
@pytest.mark.parametrize("name", FLAGSHIPS)
def test_flagship_operator_moves_no_data(
    tpu, libtpu, name: str, dtype: torch.dtype, record_property: Callable[[str, object], None]
) -> None:
    from tpu_programs import instructions, movements, run_recorded

    flagship = FLAGSHIPS[name]
    torch.manual_seed(0)
    operands = flagship.prepare(dtype)
    # Copies that a caller makes once are not the operator: the operands are on the device before it.
    on_device = [operand.to("tpu") for operand in operands]
    got, programs = run_recorded(lambda: flagship.run(*on_device))
    want = flagship.run(*operands)
    torch.testing.assert_close(got.cpu(), want, **_tolerance(dtype))
    assert got.stride() == want.stride()
    assert tuple(program.operator for program in programs) == flagship.operators

    bare = movements(instructions(flagship.bare(HLO[dtype]), V5E)) if flagship.bare else []
    allowed = Counter(bare)
    record_property("programs", len(programs))
    for program in programs:
        found = Counter(movements(instructions(program.text, V5E)))
        surplus = dict(found - allowed)
        assert not surplus, f"{surplus} in the program of {program.operator}:\n{program.text}"


def _tolerance(dtype: torch.dtype) -> dict[str, float]:
    # bf16 sums are rounded once, in another order than the CPU's.
    return {"rtol": 1e-2, "atol": 2e-2} if dtype == torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-4}


_FLAT_ROW_SUM = """
func.func public @main(%x: tensor<524288xf32>) -> tensor<512xf32> {
  %0 = stablehlo.reshape %x : (tensor<524288xf32>) -> tensor<512x1024xf32>
  %1 = stablehlo.constant dense<0.0> : tensor<f32>
  %2 = stablehlo.reduce(%0 init: %1) applies stablehlo.add across dimensions = [1] :
    (tensor<512x1024xf32>, tensor<f32>) -> tensor<512xf32>
  return %2 : tensor<512xf32>
}"""


def test_the_rule_sees_what_moves(libtpu) -> None:
    """A flat buffer read as a matrix, and a transposed copy."""
    from tpu_programs import instructions, movements

    assert movements(instructions(_FLAT_ROW_SUM, V5E)) == ["reshape f32[524288]{0} -> f32[512,1024]{1,0}"]
    transposed = """
    func.func public @main(%x: tensor<512x256xf32>) -> tensor<256x512xf32> {
      %0 = stablehlo.transpose %x, dims = [1, 0] : (tensor<512x256xf32>) -> tensor<256x512xf32>
      return %0 : tensor<256x512xf32>
    }"""
    assert len(movements(instructions(transposed, V5E))) == 1


@pytest.mark.parametrize("fused", [False, True], ids=["foreach", "fused"])
def test_a_step_with_scaled_gradients_compiles(tpu, libtpu, fused: bool) -> None:
    from tpu_programs import instructions, run_recorded

    weight = torch.nn.Parameter(torch.ones(16, 128, device="tpu"))
    optimizer = torch.optim.AdamW([weight], fused=fused, foreach=not fused)
    scaler = torch.amp.GradScaler("tpu", init_scale=4.0)

    def step() -> None:
        with torch.autocast("tpu", torch.bfloat16):
            loss = (weight @ weight.T).float().square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_([weight], 1.0)
        scaler.step(optimizer)
        scaler.update()

    _, programs = run_recorded(step)
    operators = {program.operator for program in programs}
    assert {"aten::_amp_foreach_non_finite_check_and_unscale_", "aten::_amp_update_scale_"} <= operators
    for program in programs:
        assert instructions(program.text, V6E), program.operator


@pytest.fixture(scope="module")
def smollm2() -> tuple:
    import smollm2

    return smollm2.load()


# f32 and bf16 weights of one model: the second is rounded from the first.
@pytest.fixture(scope="module", params=[torch.float32, torch.bfloat16], ids=["f32", "bf16"])
def steps(request, smollm2) -> dict[str, tuple]:
    """The step of a prompt and the step after it: the function and its arguments."""
    from smollm2 import PROMPT, Step

    tokenizer, model = smollm2
    step = Step(model.to(request.param))
    chat = [{"role": "user", "content": PROMPT}]
    ids = tokenizer.apply_chat_template(
        chat, add_generation_prompt=True, return_dict=True, return_tensors="pt"
    )["input_ids"]
    prefill = (ids, torch.tensor(0), step.empty_cache(), step.empty_cache())
    logits, keys, values = step(*prefill)
    decode = (logits[:, -1].argmax(-1, keepdim=True), torch.tensor(ids.shape[1]), keys, values)
    return {"prefill": (step, prefill), "decode": (step, decode)}


@pytest.mark.slow
@pytest.mark.parametrize("which", ["prefill", "decode"])
def test_whole_language_model_compiles_and_is_right(
    libtpu, steps: dict[str, tuple], which: str, record_property: Callable[[str, object], None]
) -> None:
    import pjrt_runner
    from smollm2 import Step
    from torch.utils._pytree import tree_leaves, tree_map
    from torch_pjrt import _core, compile_for_topology
    from torch_pjrt._export import trace_program

    step, arguments = steps[which]
    program = trace_program(step, arguments)
    assert sum(p.numel() for p in program.captured) >= 134_000_000
    text = _core.lower_to_text(program.graph)["text"]

    record_property("programs", 2)
    for topology in (V5E, V6E):
        compiled = compile_for_topology(text, topology)
        # Everything is there: the weights are arguments, and a token costs at least twice its parameters.
        assert compiled["argument_bytes"] > 134_000_000 * step.model.dtype.itemsize
        assert compiled["flops"] > 2 * 134_000_000

    want = tree_leaves(step(*arguments))
    got = pjrt_runner.run(text, tree_leaves(arguments) + program.captured, want)
    assert got[0].argmax() == want[0].argmax()
    if step.model.dtype == torch.float32:
        for ours, theirs in zip(got, want, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=2e-3)
        return
    # Thirty layers of bf16 rounding, in another order than the CPU's. A single result's error is a matter of
    # chance (the logits are those of one token); all of them together must be as near to the exact results.
    exact = tree_leaves(Step(copy.deepcopy(step.model).to(torch.float32))(*tree_map(_widened, arguments)))
    ours, theirs = _relative_errors(got, exact), _relative_errors(want, exact)
    assert ours.max() < 0.1
    assert ours.mean() <= 1.5 * theirs.mean()


def _relative_errors(results: list[torch.Tensor], exact: list[torch.Tensor]) -> torch.Tensor:
    pairs = zip(results, exact, strict=True)
    return torch.stack([(result - true).norm() / true.norm() for result, true in pairs])


def _widened(item: object) -> object:
    is_float = isinstance(item, torch.Tensor) and item.is_floating_point()
    return item.float() if is_float else item
