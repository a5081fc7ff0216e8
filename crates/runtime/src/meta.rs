//! What PyTorch's Meta kernels answer on a plan miss: whether an error is the caller's, and what they leave out.

use ops::TensorMeta;

use crate::call::{Call, Tensor, Value, for_each_tensor};
use crate::error::{Error, Result};
use crate::overlap;
use crate::plan::MetaResult;

/// Whether an exception of type `kind` only says that a Meta kernel cannot answer: there is none, or it would have to
/// look at values. Others are the caller's mistakes.
pub fn is_limit(kind: &str, message: &str, is_structured: bool) -> bool {
    // Structured kernels have shapes; what they refuse, subtracting bools for one, is the caller's mistake.
    if is_structured && kind.contains("NotImplementedError") {
        return message.contains("depends on values") || message.contains("Could not run");
    }
    // A failed assertion is a limit of the Meta kernel: no operator reports its arguments this way on the CPU.
    ["NotImplementedError", "AssertionError", "DataDependent", "DynamicOutputShape"]
        .iter()
        .any(|limit| kind.contains(limit))
        || message.contains("meta tensor")
        // torch.library.custom_op, whose fake kernel stands for one that was not given.
        || message.contains("There was no fake impl registered")
}

/// TensorIterator's checks on `out=` tensors, which the Python Meta kernels leave out.
pub fn check_written(call: &Call, metas: &MetaResult) -> Result<()> {
    if !call.op.is_pointwise {
        return Ok(());
    }
    let after = |slot: usize| metas.mutated.iter().find(|(s, _)| *s == slot).map(|(_, meta)| &meta.sizes[..]);
    let mut slot = 0;
    for (arg, declared) in call.args.iter().zip(&call.op.schema.arguments) {
        if let (Value::Tensor(written), true) = (arg, declared.is_out) {
            check_out(call, written, after(slot).unwrap_or(written.sizes))?;
        }
        for_each_tensor(std::slice::from_ref(arg), &mut |_, _| slot += 1);
    }
    Ok(())
}

fn check_out(call: &Call, written: &Tensor, sizes: &[i64]) -> Result<()> {
    overlap::assert_none_within(written)?;
    let mut result = Ok(());
    for (_, arg) in call.args.iter().enumerate().filter(|(index, _)| !call.op.is_mutated(*index)) {
        for_each_tensor(std::slice::from_ref(arg), &mut |_, value| {
            if let (Value::Tensor(read), Ok(())) = (value, &result) {
                result = check_pair(written, read, sizes);
            }
        });
    }
    result
}

fn check_pair(written: &Tensor, read: &Tensor, sizes: &[i64]) -> Result<()> {
    overlap::assert_none_partial(written, read)?;
    if written.is_same(read) && sizes != written.sizes {
        return Err(Error::Runtime(format!(
            "output with shape {:?} doesn't match the broadcast shape {sizes:?}",
            written.sizes
        )));
    }
    Ok(())
}

/// What the written tensors have to become before the call can be planned; `None` when they have their sizes.
pub fn resized(call: &Call, metas: &MetaResult) -> Option<Vec<TensorMeta>> {
    let fresh = metas.functional.len().checked_sub(metas.mutated.len());
    let mut tensors = Vec::new();
    for_each_tensor(call.args, &mut |_, value| tensors.push(value));
    let mut is_changed = false;
    let written = metas.mutated.iter().enumerate().map(|(k, (slot, after))| {
        let (mut meta, is_ours) = match tensors.get(*slot) {
            Some(Value::Tensor(tensor)) => (tensor.meta(), true),
            Some(Value::Host(host)) => (host.meta(), false),
            _ => (after.clone(), false),
        };
        if is_ours && meta.sizes != after.sizes {
            // Python's Meta kernels leave resized tensors row-major; they get the strides of a fresh result.
            let result = fresh.and_then(|fresh| metas.functional[fresh + k].as_ref());
            let like = result.filter(|result| result.sizes == after.sizes).unwrap_or(after);
            meta.sizes = like.sizes.clone();
            meta.strides = like.strides.clone();
            is_changed = true;
        }
        meta
    });
    let written: Vec<_> = written.collect();
    is_changed.then_some(written)
}
