//! Calls with lists of tensors (`_foreach_mul_`) that are no one program: they run position by position, as PyTorch's own
//! kernels loop.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::call::{Call, Tensor, Value};

struct Span {
    storage: usize,
    begin: i64,
    end: i64,
    /// Position in its list; `None` outside lists.
    position: Option<usize>,
    written: bool,
}

/// Whether the call must run position by position.
pub fn by_position(call: &Call) -> bool {
    call.args.iter().any(|arg| matches!(arg, Value::List(_))) && (overlap(call) || spread_over_devices(call))
}

/// Whether tensors of the call's lists are on several devices, the host among them.
fn spread_over_devices(call: &Call) -> bool {
    if !call.op.name.starts_with("aten::_foreach_") {
        return false;
    }
    call.args.iter().any(|arg| match arg {
        Value::List(list) => list.iter().any(|value| match value {
            Value::Tensor(tensor) => tensor.storage.device().index() as i32 != call.device,
            Value::Host(host) => !host.wrapped,
            _ => false,
        }),
        _ => false,
    })
}

/// Whether a list that the call writes shares memory with what stands at another position of the call's lists: one
/// program for the whole list would not see what earlier positions wrote.
fn overlap(call: &Call) -> bool {
    let written = |index: usize| call.op.is_mutated(index);
    if !call.args.iter().enumerate().any(|(index, arg)| written(index) && matches!(arg, Value::List(_))) {
        return false;
    }
    let mut spans: SmallVec<[Span; 32]> = SmallVec::new();
    for (index, arg) in call.args.iter().enumerate() {
        match arg {
            Value::Tensor(tensor) => spans.extend(span(tensor, None, written(index))),
            Value::List(list) => {
                for (position, value) in list.iter().enumerate() {
                    if let Value::Tensor(tensor) = value {
                        spans.extend(span(tensor, Some(position), written(index)));
                    }
                }
            }
            _ => {}
        }
    }
    spans.sort_unstable_by_key(|span| (span.storage, span.begin));
    // Spans that hang together form a group.
    let (mut group, mut end) = (0, i64::MIN);
    let (mut is_written, mut is_mixed) = (false, false);
    for (index, span) in spans.iter().enumerate() {
        if span.storage != spans[group].storage || span.begin >= end {
            (group, end, is_written, is_mixed) = (index, i64::MIN, false, false);
        }
        end = end.max(span.end);
        is_written |= span.written;
        is_mixed |= span.position != spans[group].position;
        if is_written && is_mixed {
            return true;
        }
    }
    false
}

/// The bytes that a tensor covers; none when it has no elements.
fn span(tensor: &Tensor, position: Option<usize>, written: bool) -> Option<Span> {
    let size = tensor.dtype.size() as i64;
    let last: i64 = tensor.sizes.iter().zip(tensor.strides).map(|(size, stride)| (size - 1) * stride).sum();
    let begin = tensor.offset * size;
    let storage = Arc::as_ptr(tensor.storage) as usize;
    (tensor.numel() != 0).then_some(Span {
        storage,
        begin,
        end: begin + (last + 1) * size,
        position,
        written,
    })
}
