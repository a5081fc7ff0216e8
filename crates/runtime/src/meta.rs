//! What PyTorch's Meta kernels answer on a plan miss: whether an error is the caller's, and what they leave out.

use ops::TensorMeta;

use crate::call::{Call, Tensor, Value, for_each_tensor};
use crate::error::{Error, Result};
use crate::fallback;
use crate::hooks;
use crate::layout::row_major_strides;
use crate::out::{self, Resized};
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

/// The checks on written tensors that the Python Meta kernels leave out.
pub fn check_written(call: &Call, metas: &MetaResult) -> Result<()> {
    overlap::check(call)?;
    check_in_place(call, metas)?;
    if !call.op.is_pointwise {
        return Ok(());
    }
    let after = |slot: usize| metas.mutated.iter().find(|(s, _)| *s == slot).map(|(_, meta)| &meta.sizes[..]);
    let mut slot = 0;
    for (arg, declared) in call.args.iter().zip(&call.op.schema.arguments) {
        if let (Value::Tensor(written), true) = (arg, declared.is_out) {
            check_size_of_read(call, written, after(slot).unwrap_or(written.sizes))?;
        }
        for_each_tensor(std::slice::from_ref(arg), &mut |_, _| slot += 1);
    }
    Ok(())
}

/// The result of an in-place operator has the size of its tensor, whatever a Meta kernel makes of that.
fn check_in_place(call: &Call, metas: &MetaResult) -> Result<()> {
    if !call.op.is_in_place() {
        return Ok(());
    }
    let first = metas.functional.len().saturating_sub(metas.mutated.len());
    let mut given = Vec::new();
    for_each_tensor(call.args, &mut |_, value| {
        given.push(if let Value::Tensor(tensor) = value { Some(tensor.sizes) } else { None });
    });
    for ((slot, after), new) in metas.mutated.iter().zip(&metas.functional[first..]) {
        let Some(Some(own)) = given.get(*slot) else { continue };
        let results = [Some(after), new.as_ref()];
        if let Some(misfit) = results.into_iter().flatten().find(|result| result.sizes[..] != **own) {
            if let Some(hooks) = hooks::get() {
                (hooks.refuse)(call)?;
            }
            return Err(Error::Runtime(format!(
                "output with shape {own:?} doesn't match the broadcast shape {:?}",
                misfit.sizes
            )));
        }
    }
    Ok(())
}

/// An `out=` tensor that is read cannot be resized.
fn check_size_of_read(call: &Call, written: &Tensor, sizes: &[i64]) -> Result<()> {
    let mut is_read = false;
    for (_, arg) in call.args.iter().enumerate().filter(|(index, _)| !call.op.is_mutated(*index)) {
        for_each_tensor(std::slice::from_ref(arg), &mut |_, value| {
            is_read |= matches!(value, Value::Tensor(read) if written.is_same(read));
        });
    }
    if is_read && sizes != written.sizes {
        return Err(Error::Runtime(format!(
            "output with shape {:?} doesn't match the broadcast shape {sizes:?}",
            written.sizes
        )));
    }
    Ok(())
}

/// [`ops::OpDef::computes_in_out`]
pub fn in_dtype_of_out(call: &Call, mut metas: MetaResult) -> MetaResult {
    let first = metas.functional.len().saturating_sub(metas.mutated.len());
    if call.op.lowering.is_some_and(|def| def.computes_in_out) {
        for ((_, written), new) in metas.mutated.iter().zip(&mut metas.functional[first..]) {
            if let Some(new) = new {
                new.dtype = written.dtype;
            }
        }
    }
    metas
}

/// [`ops::OpDef::keeps_shape`]
pub fn with_given_shape(call: &Call, mut metas: MetaResult) -> MetaResult {
    if !call.op.lowering.is_some_and(|def| def.keeps_shape) {
        return metas;
    }
    let mut given = Vec::new();
    for_each_tensor(call.args, &mut |_, value| {
        given.push(if let Value::Tensor(tensor) = value { Some(tensor.meta()) } else { None });
    });
    let first = metas.functional.len().saturating_sub(metas.mutated.len());
    for (k, (slot, after)) in metas.mutated.iter_mut().enumerate() {
        let count = |sizes: &[i64]| sizes.iter().product::<i64>();
        if let Some(Some(own)) = given.get(*slot)
            && count(&own.sizes) == count(&after.sizes)
        {
            after.clone_from(own);
            metas.functional[first + k] = Some(own.clone());
        }
    }
    metas
}

/// What the written tensors have to become before the call can be planned; `None` when they have their sizes.
pub fn resized(call: &Call, metas: &MetaResult) -> Option<Vec<TensorMeta>> {
    if fallback::is_host_kernel(call.op) && !out::has_one_tensor_twice(call) {
        return None; // The host's own kernel resizes.
    }
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
        let is_empty = meta.sizes.contains(&0);
        let lies = out::resized(call.op);
        if is_ours && meta.sizes != after.sizes {
            // Python's Meta kernels leave resized tensors row-major; they get the strides of a fresh result.
            let result = fresh.and_then(|fresh| metas.functional[fresh + k].as_ref());
            let like = result.filter(|result| result.sizes == after.sizes).unwrap_or(after);
            let strides = match lies {
                Resized::Fresh => like.strides.clone(),
                Resized::ColumnMajor if is_empty => like.strides.clone(),
                Resized::ColumnMajor | Resized::RowMajor => row_major_strides(&like.sizes),
            };
            meta.sizes = like.sizes.clone();
            meta.strides = strides;
            is_changed = true;
        }
        meta
    });
    let written: Vec<_> = written.collect();
    is_changed.then_some(written)
}
