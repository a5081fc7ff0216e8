//! The CPU kernels' checks on written tensors: where elements share memory, what a kernel writes is undefined.

use std::sync::Arc;

use crate::call::{Call, Tensor, Value, for_each_tensor};
use crate::error::{Error, Result};
use crate::layout::memory_order;
use crate::operator::Operator;
use crate::schema::base;

/// What an operator refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// A written tensor several of whose elements are the same memory.
    Within,
    /// That, and one that shares memory with a tensor that is read without being the same.
    Partial,
    /// That, and one that is read.
    Any,
}

/// PyTorch's tag tells what TensorIterator checks; these check beside it. Others, such as `mm`, take what comes.
const CHECKED: &[(Refused, &[&str])] = &[
    (Refused::Within, &["bernoulli", "bucketize", "fill", "masked_scatter", "mm", "searchsorted"]),
    (
        Refused::Partial,
        &[
            "addmm",
            "aminmax",
            "conj_physical",
            "cumprod",
            "cumsum",
            "elu",
            "glu",
            "linalg_vector_norm",
            "logcumsumexp",
            "max",
            "median",
            "min",
            "mode",
            "nanmedian",
            "norm",
            "renorm",
            "sort",
            "topk",
            "where",
        ],
    ),
    (
        Refused::Any,
        &[
            "cat",
            "gather",
            "index",
            "index_add",
            "index_copy",
            "index_put",
            "index_reduce",
            "index_select",
            "kthvalue",
            "linalg_cross",
            "put",
            "scatter",
            "scatter_add",
            "scatter_reduce",
            "stack",
            "take",
        ],
    ),
];

/// Writing to an expanded tensor is deprecated for them, not refused, or harmless.
const MAY_REPEAT: &[&str] = &[
    "aten::_index_put_impl_",
    "aten::index_fill_",
    "aten::index_put_",
    "aten::masked_fill_",
    "aten::threshold_",
];

/// Of an operator other than those on lists.
fn listed(op: &Operator) -> Option<Refused> {
    let name = op.name.strip_prefix("aten::")?;
    // A number may be written to the same memory several times.
    if name == "fill_.Scalar" {
        return None;
    }
    let name = name.split('.').next().unwrap_or(name).trim_end_matches('_');
    CHECKED.iter().find(|(_, names)| names.contains(&name)).map(|(refused, _)| *refused)
}

/// Refuses what the CPU's kernel refuses of the tensors that a call writes.
pub fn check(call: &Call) -> Result<()> {
    if call.op.name.starts_with("aten::_foreach_") {
        return check_positions(call);
    }
    let listed = listed(call.op);
    if call.op.name.starts_with("aten::aminmax") {
        check_results(call)?;
    }
    let pointwise = call.op.is_pointwise.then_some(Refused::Partial);
    let in_place = call.op.is_in_place().then_some(Refused::Within);
    let Some(refused) = listed.or(pointwise).or(in_place) else { return Ok(()) };
    let may_repeat = MAY_REPEAT.contains(&base(&call.op.name));
    for written in written_arguments(call) {
        let Value::Tensor(written) = written else { continue };
        if !may_repeat {
            assert_none_within(written)?;
        }
        for read in read_arguments(call) {
            check_against(written, read, refused)?;
        }
    }
    Ok(())
}

fn check_results(call: &Call) -> Result<()> {
    let written: Vec<_> = written_arguments(call).collect();
    if let [Value::Tensor(low), high @ Value::Tensor(_)] = written[..]
        && check_against(low, high, Refused::Any).is_err()
    {
        let message = "aminmax(): the `min` and `max` out= tensors must not overlap.";
        return Err(Error::Value(message.to_owned()));
    }
    Ok(())
}

fn written_arguments<'c>(call: &'c Call) -> impl Iterator<Item = &'c Value<'c>> {
    call.args.iter().enumerate().filter(|(index, _)| call.op.is_mutated(*index)).map(|(_, arg)| arg)
}

fn read_arguments<'c>(call: &'c Call) -> impl Iterator<Item = &'c Value<'c>> {
    call.args.iter().enumerate().filter(|(index, _)| !call.op.is_mutated(*index)).map(|(_, arg)| arg)
}

/// Each tensor of a written list meets the tensors in its position of the other lists.
fn check_positions(call: &Call) -> Result<()> {
    for written in written_arguments(call) {
        let Value::List(list) = written else { continue };
        for (position, written) in list.iter().enumerate() {
            let Value::Tensor(written) = written else { continue };
            assert_none_within(written)?;
            for read in read_arguments(call) {
                let read = match read {
                    Value::List(others) => others.get(position).unwrap_or(&Value::None),
                    other => other,
                };
                check_against(written, read, Refused::Partial)?;
            }
        }
    }
    Ok(())
}

fn check_against(written: &Tensor, read: &Value, refused: Refused) -> Result<()> {
    let mut result = Ok(());
    for_each_tensor(std::slice::from_ref(read), &mut |_, value| {
        if let (Value::Tensor(read), Ok(()), true) = (value, &result, refused != Refused::Within) {
            result = assert_none_shared(written, read, refused == Refused::Any);
        }
    });
    result
}

/// Refuses tensors several of whose elements are the same memory, as far as it can be told cheaply.
pub fn assert_none_within(written: &Tensor) -> Result<()> {
    let repeats =
        || written.sizes.iter().zip(written.strides).any(|(&size, &stride)| size > 1 && stride == 0);
    if memory_order(written.sizes, written.strides).is_none() && repeats() {
        return Err(Error::Runtime(
            "unsupported operation: more than one element of the written-to tensor refers to a single memory location. \
             Please clone() the tensor before performing the operation."
                .to_owned(),
        ));
    }
    Ok(())
}

/// Refuses dense tensors that share memory; `even_same`: also when they are the same.
fn assert_none_shared(written: &Tensor, read: &Tensor, even_same: bool) -> Result<()> {
    let is_dense = |tensor: &Tensor| memory_order(tensor.sizes, tensor.strides).is_some();
    if !Arc::ptr_eq(written.storage, read.storage)
        || written.numel() == 0
        || read.numel() == 0
        || !is_dense(written)
        || !is_dense(read)
    {
        return Ok(());
    }
    let bytes = |tensor: &Tensor| {
        let size = tensor.dtype.size() as i64;
        (tensor.offset * size, (tensor.offset + tensor.numel()) * size)
    };
    let ((begin, end), (read_begin, read_end)) = (bytes(written), bytes(read));
    // Dimensions of one element have no order: reductions write into tensors without those that they remove.
    let order = |tensor: &Tensor| {
        let dims = tensor.sizes.iter().zip(tensor.strides).filter(|(size, _)| **size != 1);
        dims.map(|(_, stride)| *stride).collect::<ops::Dims>()
    };
    let is_same = (begin, end) == (read_begin, read_end) && order(written) == order(read);
    if (even_same || !is_same) && begin < read_end && read_begin < end {
        return Err(Error::Runtime(
            "unsupported operation: some elements of the input tensor and the written-to tensor refer to a single \
             memory location. Please clone() the tensor before performing the operation."
                .to_owned(),
        ));
    }
    Ok(())
}
