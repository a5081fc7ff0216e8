//! Operators over lists of tensors, as one program. Each element is lowered as the operator of the single tensor, which
//! is what PyTorch's slow path calls.

use crate::call::{Call, Outputs};
use crate::error::LoweringError;
use crate::graph::{Arg, Number};
use crate::registry::OpDef;

type Result<T> = std::result::Result<T, LoweringError>;

const ONE: &[Arg] = &[Arg::Number(Number::Int(1))];

pub const OPS: &[OpDef] = &[
    OpDef::new("aten::_foreach_abs", |c| each(c, "aten::abs", &[])),
    OpDef::new("aten::_foreach_acos", |c| each(c, "aten::acos", &[])),
    OpDef::new("aten::_foreach_add.List", |c| each(c, "aten::add.Tensor", &[])).ones(&[2]),
    OpDef::new("aten::_foreach_add.Scalar", |c| each(c, "aten::add.Scalar", ONE)),
    OpDef::new("aten::_foreach_add.ScalarList", |c| each(c, "aten::add.Scalar", ONE)),
    OpDef::new("aten::_foreach_add.Tensor", |c| each(c, "aten::add.Tensor", &[])).ones(&[2]),
    OpDef::new("aten::_foreach_addcdiv.Scalar", |c| each(c, "aten::addcdiv", &[])).ones(&[3]),
    OpDef::new("aten::_foreach_addcdiv.ScalarList", |c| each(c, "aten::addcdiv", &[])),
    OpDef::new("aten::_foreach_addcmul.Scalar", |c| each(c, "aten::addcmul", &[])).ones(&[3]),
    OpDef::new("aten::_foreach_addcmul.ScalarList", |c| each(c, "aten::addcmul", &[])),
    OpDef::new("aten::_foreach_asin", |c| each(c, "aten::asin", &[])),
    OpDef::new("aten::_foreach_atan", |c| each(c, "aten::atan", &[])),
    OpDef::new("aten::_foreach_ceil", |c| each(c, "aten::ceil", &[])),
    OpDef::new("aten::_foreach_clamp_max.List", |c| each(c, "aten::clamp_max.Tensor", &[])),
    OpDef::new("aten::_foreach_clamp_max.Scalar", |c| each(c, "aten::clamp_max", &[])),
    OpDef::new("aten::_foreach_clamp_max.ScalarList", |c| each(c, "aten::clamp_max", &[])),
    OpDef::new("aten::_foreach_clamp_min.List", |c| each(c, "aten::clamp_min.Tensor", &[])),
    OpDef::new("aten::_foreach_clamp_min.Scalar", |c| each(c, "aten::clamp_min", &[])),
    OpDef::new("aten::_foreach_clamp_min.ScalarList", |c| each(c, "aten::clamp_min", &[])),
    OpDef::new("aten::_foreach_clone", |c| each(c, "aten::clone", &[])),
    OpDef::new("aten::_foreach_copy", |c| each(c, "aten::copy", &[])),
    OpDef::new("aten::_foreach_cos", |c| each(c, "aten::cos", &[])),
    OpDef::new("aten::_foreach_cosh", |c| each(c, "aten::cosh", &[])),
    OpDef::new("aten::_foreach_div.List", |c| each(c, "aten::div.Tensor", &[])),
    OpDef::new("aten::_foreach_div.Scalar", |c| each(c, "aten::div.Scalar", &[])),
    OpDef::new("aten::_foreach_div.ScalarList", |c| each(c, "aten::div.Scalar", &[])),
    OpDef::new("aten::_foreach_div.Tensor", |c| each(c, "aten::div.Tensor", &[])),
    OpDef::new("aten::_foreach_erf", |c| each(c, "aten::erf", &[])),
    OpDef::new("aten::_foreach_erfc", |c| each(c, "aten::erfc", &[])),
    OpDef::new("aten::_foreach_exp", |c| each(c, "aten::exp", &[])),
    OpDef::new("aten::_foreach_expm1", |c| each(c, "aten::expm1", &[])),
    OpDef::new("aten::_foreach_floor", |c| each(c, "aten::floor", &[])),
    OpDef::new("aten::_foreach_frac", |c| each(c, "aten::frac", &[])),
    OpDef::new("aten::_foreach_lerp.List", |c| each(c, "aten::lerp.Tensor", &[])),
    OpDef::new("aten::_foreach_lerp.Scalar", |c| each(c, "aten::lerp.Scalar", &[])),
    OpDef::new("aten::_foreach_lerp.ScalarList", |c| each(c, "aten::lerp.Scalar", &[])),
    OpDef::new("aten::_foreach_lgamma", |c| each(c, "aten::lgamma", &[])),
    OpDef::new("aten::_foreach_log", |c| each(c, "aten::log", &[])),
    OpDef::new("aten::_foreach_log10", |c| each(c, "aten::log10", &[])),
    OpDef::new("aten::_foreach_log1p", |c| each(c, "aten::log1p", &[])),
    OpDef::new("aten::_foreach_log2", |c| each(c, "aten::log2", &[])),
    OpDef::new("aten::_foreach_max", |c| each(c, "aten::max", &[])),
    OpDef::new("aten::_foreach_maximum.List", |c| each(c, "aten::maximum", &[])),
    OpDef::new("aten::_foreach_maximum.Scalar", |c| each(c, "aten::clamp_min", &[])),
    OpDef::new("aten::_foreach_maximum.ScalarList", |c| each(c, "aten::clamp_min", &[])),
    OpDef::new("aten::_foreach_minimum.List", |c| each(c, "aten::minimum", &[])),
    OpDef::new("aten::_foreach_minimum.Scalar", |c| each(c, "aten::clamp_max", &[])),
    OpDef::new("aten::_foreach_minimum.ScalarList", |c| each(c, "aten::clamp_max", &[])),
    OpDef::new("aten::_foreach_mul.List", |c| each(c, "aten::mul.Tensor", &[])),
    OpDef::new("aten::_foreach_mul.Scalar", |c| each(c, "aten::mul.Scalar", &[])),
    OpDef::new("aten::_foreach_mul.ScalarList", |c| each(c, "aten::mul.Scalar", &[])),
    OpDef::new("aten::_foreach_mul.Tensor", |c| each(c, "aten::mul.Tensor", &[])),
    OpDef::new("aten::_foreach_neg", |c| each(c, "aten::neg", &[])),
    OpDef::new("aten::_foreach_norm.Scalar", norm).attributes(&[1]),
    OpDef::new("aten::_foreach_pow.List", |c| each(c, "aten::pow.Tensor_Tensor", &[])),
    OpDef::new("aten::_foreach_pow.Scalar", |c| each(c, "aten::pow.Tensor_Scalar", &[])).attributes(&[1]),
    OpDef::new("aten::_foreach_pow.ScalarAndTensor", |c| each(c, "aten::pow.Scalar", &[])),
    OpDef::new("aten::_foreach_pow.ScalarList", |c| each(c, "aten::pow.Tensor_Scalar", &[])).attributes(&[1]),
    OpDef::new("aten::_foreach_reciprocal", |c| each(c, "aten::reciprocal", &[])),
    OpDef::new("aten::_foreach_round", |c| each(c, "aten::round", &[])),
    OpDef::new("aten::_foreach_rsqrt", |c| each(c, "aten::rsqrt", &[])),
    OpDef::new("aten::_foreach_sigmoid", |c| each(c, "aten::sigmoid", &[])),
    OpDef::new("aten::_foreach_sign", |c| each(c, "aten::sign", &[])),
    OpDef::new("aten::_foreach_sin", |c| each(c, "aten::sin", &[])),
    OpDef::new("aten::_foreach_sinh", |c| each(c, "aten::sinh", &[])),
    OpDef::new("aten::_foreach_sqrt", |c| each(c, "aten::sqrt", &[])),
    OpDef::new("aten::_foreach_sub.List", |c| each(c, "aten::sub.Tensor", &[])).ones(&[2]),
    OpDef::new("aten::_foreach_sub.Scalar", |c| each(c, "aten::sub.Scalar", ONE)),
    OpDef::new("aten::_foreach_sub.ScalarList", |c| each(c, "aten::sub.Scalar", ONE)),
    OpDef::new("aten::_foreach_tan", |c| each(c, "aten::tan", &[])),
    OpDef::new("aten::_foreach_tanh", |c| each(c, "aten::tanh", &[])),
    OpDef::new("aten::_foreach_trunc", |c| each(c, "aten::trunc", &[])),
    OpDef::new("aten::_foreach_zero", |c| each(c, "aten::zero", &[])),
];

/// `op` on element k of every list argument and on the other arguments as they are, then `more`.
fn each(c: &mut Call<'_>, op: &'static str, more: &[Arg]) -> Result<Outputs> {
    let mut results = Outputs::default();
    for k in 0..c.outputs() {
        let mut args: Vec<Arg> =
            c.args().iter().enumerate().map(|(i, arg)| element(arg, i, k)).collect::<Result<_>>()?;
        args.extend_from_slice(more);
        let out = c.out(k)?.clone();
        results.0.extend(c.delegate(op, args, vec![Some(out)])?.0);
    }
    Ok(results)
}

fn element(arg: &Arg, index: usize, k: usize) -> Result<Arg> {
    let element = match arg {
        Arg::Tensors(list) => list.get(k).copied().flatten().map(Arg::Tensor),
        Arg::Numbers(list) => list.get(k).copied().map(Arg::Number),
        Arg::Ints(list) => list.get(k).map(|value| Arg::Number(Number::Int(*value))),
        Arg::Floats(list) => list.get(k).map(|value| Arg::Number(Number::Float(*value))),
        Arg::Bools(list) => list.get(k).map(|value| Arg::Number(Number::Bool(*value))),
        other => Some(other.clone()),
    };
    element.ok_or_else(|| LoweringError::Argument {
        index,
        expected: "a list as long as the results",
        got: format!("no element {k}"),
    })
}

/// aten::_foreach_norm.Scalar(self, ord=2, dtype=None)
fn norm(c: &mut Call<'_>) -> Result<Outputs> {
    let dtype = c.args().get(2).cloned().unwrap_or(Arg::None);
    let mut results = Outputs::default();
    for k in 0..c.outputs() {
        let args = vec![
            element(&c.args()[0], 0, k)?,
            c.args().get(1).cloned().unwrap_or(Arg::Number(Number::Int(2))),
            Arg::None,
            Arg::Number(Number::Bool(false)),
            dtype.clone(),
        ];
        let out = c.out(k)?.clone();
        results.0.extend(c.delegate("aten::linalg_vector_norm", args, vec![Some(out)])?.0);
    }
    Ok(results)
}
