//! What CPU kernels ask of tensors given for results (`out=`), above all of their dtypes, and Meta kernels leave out.

use ops::{DType, promote_types};

use crate::call::{Call, Tensor, Value, for_each_tensor};
use crate::error::{Error, Result};
use crate::operator::Operator;
use crate::plan::MetaResult;
use crate::schema::base;

/// Functional forms, with all their overloads or without, whose `out=` tensors have the results' dtypes, beside structured ones that are not
/// TensorIterator's. Others cast.
const EXACT: &[&str] = &[
    "aten::bitwise_not",
    "aten::bucketize",
    "aten::ceil",
    "aten::complex",
    "aten::cummax",
    "aten::cummin",
    "aten::floor",
    "aten::frac",
    "aten::gelu",
    "aten::hardshrink",
    "aten::heaviside",
    "aten::index_select",
    "aten::kthvalue",
    "aten::lerp.Tensor",
    "aten::linalg_solve_triangular",
    "aten::log_sigmoid_forward",
    "aten::logcumsumexp",
    "aten::mode",
    "aten::multinomial",
    "aten::neg",
    "aten::ormqr",
    "aten::polar",
    "aten::round",
    "aten::searchsorted",
    "aten::sgn",
    "aten::sign",
    "aten::softplus",
    "aten::softshrink",
    "aten::sort",
    "aten::take",
    "aten::trunc",
];

/// Structured ones that are not TensorIterator's and cast.
const CASTING: &[&str] = &["aten::cat", "aten::logsumexp"];

/// How a tensor lies that had to be resized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resized {
    /// As a fresh result.
    Fresh,
    RowMajor,
    /// As LAPACK wants it where there was no element, and row-major where there were some, but not the right ones.
    ColumnMajor,
}

pub fn resized(op: &Operator) -> Resized {
    match op.functional.as_str() {
        "aten::cholesky_inverse" | "aten::linalg_householder_product" | "aten::ormqr" => Resized::ColumnMajor,
        "aten::_fft_c2c" | "aten::_fft_c2r" | "aten::_fft_r2c" => Resized::RowMajor,
        _ => Resized::Fresh,
    }
}

/// Refuses what has to be refused before Meta kernels raise another exception.
pub fn refuse(call: &Call) -> Result<()> {
    let Some((_, out)) = outs(call).next() else { return Ok(()) };
    let given = out.dtype;
    let first = read(call).next().map(|tensor| tensor.dtype);
    match base(&call.op.name) {
        "aten::cat" | "aten::stack" | "aten::_stack" => {
            let mut joined: Option<DType> = None;
            for_each_tensor(&call.args[..1], &mut |_, value| {
                if let Value::Tensor(tensor) = value {
                    joined = joined.map_or(Some(tensor.dtype), |dtype| promote_types(dtype, tensor.dtype));
                }
            });
            match joined {
                Some(joined) if !can_cast(joined, given) => Err(Error::Type(format!(
                    "torch.cat(): input types can't be cast to the desired output type {}",
                    given.name_in_cpp()
                ))),
                _ => Ok(()),
            }
        }
        "aten::arange" if given.is_bool() => Err(not_implemented(call, given)),
        "aten::nansum" if given.is_integral(true) && first.is_some_and(|dtype| !dtype.is_integral(true)) => {
            Err(not_implemented(call, given))
        }
        "aten::normal" if given.is_integral(true) => Err(not_implemented(call, given)),
        // The CPU scales and shifts what it has drawn into the tensor as it is.
        "aten::normal" if read(call).count() == 1 && read(call).any(|tensor| tensor.sizes != out.sizes) => {
            Err(Error::Runtime(format!(
                "{}: the tensor given for the result has size {:?}, the argument {:?}",
                call.op.name,
                out.sizes,
                read(call).next().map_or(&[][..], |tensor| tensor.sizes)
            )))
        }
        _ => Ok(()),
    }
}

fn not_implemented(call: &Call, dtype: DType) -> Error {
    Error::NotImplemented { op: call.op.name.clone(), reason: format!("results of dtype {}", dtype.name()) }
}

/// Refuses `out=` tensors whose dtypes are not those of the results, which `metas` has, where the operator asks that.
pub fn check(call: &Call, metas: &MetaResult) -> Result<()> {
    let name = base(&call.op.functional);
    let is_structured = call.op.schema.is_structured && !call.op.is_pointwise && !CASTING.contains(&name);
    let is_exact = is_structured || EXACT.contains(&name) || EXACT.contains(&call.op.functional.as_str());
    if !is_exact && !call.op.is_pointwise || !call.op.has_functional {
        return Ok(());
    }
    let first = metas.functional.len().saturating_sub(metas.mutated.len());
    for (k, (slot, _)) in metas.mutated.iter().enumerate() {
        let out = outs(call).find(|(place, _)| place == slot).map(|(_, out)| out.dtype);
        let (Some(given), Some(Some(result))) = (out, metas.functional.get(first + k)) else { continue };
        let dtype = result.dtype;
        if is_exact && given != dtype {
            let (expected, given) = (dtype.name(), given.name());
            return Err(Error::Runtime(format!(
                "Expected out tensor to have dtype {expected}, but got {given} instead"
            )));
        }
        if !can_cast(dtype, given) {
            let (from, to) = (dtype.name_in_cpp(), given.name_in_cpp());
            return Err(Error::Runtime(format!(
                "result type {from} can't be cast to the desired output type {to}"
            )));
        }
    }
    Ok(())
}

/// `c10::canCast`: whether the kind of number stays.
fn can_cast(from: DType, to: DType) -> bool {
    from.category() <= to.category()
}

/// Whether one tensor is given for two results.
pub fn has_one_tensor_twice(call: &Call) -> bool {
    let outs: Vec<_> = outs(call).map(|(_, out)| out).collect();
    outs.iter().enumerate().any(|(k, out)| outs[..k].iter().any(|earlier| earlier.is_same(out)))
}

/// The tensors among the arguments that are not `out=`.
fn read<'c>(call: &'c Call) -> impl Iterator<Item = &'c Tensor<'c>> {
    let arguments = call.args.iter().zip(&call.op.schema.arguments).filter(|(_, declared)| !declared.is_out);
    arguments.filter_map(|(arg, _)| if let Value::Tensor(tensor) = arg { Some(tensor) } else { None })
}

/// The `out=` tensors of a call with their slots.
fn outs<'c>(call: &'c Call) -> impl Iterator<Item = (usize, &'c Tensor<'c>)> {
    let mut outs = Vec::new();
    let mut first = 0;
    for (arg, declared) in call.args.iter().zip(&call.op.schema.arguments) {
        let mut count = 0;
        for_each_tensor(std::slice::from_ref(arg), &mut |slot, value| {
            count = slot + 1;
            if let (Value::Tensor(tensor), true) = (value, declared.is_out) {
                outs.push((first + slot, tensor));
            }
        });
        first += count;
    }
    outs.into_iter()
}
