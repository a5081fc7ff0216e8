//! TensorIterator's checks on written tensors: where elements share memory, what a kernel writes is undefined.

use std::sync::Arc;

use crate::call::Tensor;
use crate::error::{Error, Result};
use crate::layout::memory_order;

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

/// Refuses dense tensors that share memory without being the same.
pub fn assert_none_partial(written: &Tensor, read: &Tensor) -> Result<()> {
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
    let is_same = (begin, end) == (read_begin, read_end) && written.strides == read.strides;
    if !is_same && begin < read_end && read_begin < end {
        return Err(Error::Runtime(
            "unsupported operation: some elements of the input tensor and the written-to tensor refer to a single \
             memory location. Please clone() the tensor before performing the operation."
                .to_owned(),
        ));
    }
    Ok(())
}
