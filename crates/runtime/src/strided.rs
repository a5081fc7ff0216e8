//! Emits the StableHLO that reads a strided view of a base buffer, or writes one.

use ops::{DType, Dims};
use stablehlo::{Builder, Direction, ElementType, TensorType, Value};

use crate::bitcast;
use crate::layout::Layout;
use crate::view::{Recipe, Slices};

/// A view and how it lies in its base.
pub struct View<'a> {
    pub dtype: DType,
    pub sizes: &'a [i64],
    pub strides: &'a [i64],
    pub recipe: &'a Recipe,
    /// One per refined dimension, or the linear offset for a gather.
    pub starts: Vec<Start>,
}

#[derive(Clone, Copy, Debug)]
pub enum Start {
    Static(i64),
    /// A 0-d integer operand.
    Operand(Value),
}

type Result<T> = std::result::Result<T, stablehlo::Error>;

/// The logical, row-major value of `view`.
pub fn read(b: &mut Builder, base: Value, layout: &Layout, view: &View) -> Result<Value> {
    let elem = view.dtype.element_type();
    if view.sizes.contains(&0) {
        return b.splat(elem, view.sizes, 0);
    }
    let base = bitcast::reinterpret(b, base, layout.dtype, carrier(layout, view))?;
    let value = match view.recipe {
        Recipe::Slices(slices) => read_slices(b, base, slices, view)?,
        Recipe::Gather => {
            let flat_len = b.dims(base).iter().product();
            let flat = b.reshape(base, &[flat_len])?;
            let indices = linear_indices(b, view, view.sizes, flat_len)?;
            gather_elements(b, flat, indices)?
        }
    };
    if b.elem(value) == elem { Ok(value) } else { b.bitcast_convert(value, elem) }
}

/// The dtype in which the elements of a view of another dtype than the buffer's are moved. Not every plugin moves
/// narrow floats bit by bit (XLA's CPU compiler computes in float32, which changes NaNs), and bits may be what counts.
fn carrier(layout: &Layout, view: &View) -> DType {
    match view.dtype {
        dtype if dtype == layout.dtype => dtype,
        DType::Float16 | DType::BFloat16 => DType::UInt16,
        DType::Float8E5M2 | DType::Float8E4M3FN | DType::Float8E5M2FNUZ | DType::Float8E4M3FNUZ => {
            DType::UInt8
        }
        dtype => dtype,
    }
}

/// `base` with the elements of `view` replaced by `update` (logical sizes and dtype of the view).
pub fn write(b: &mut Builder, base: Value, layout: &Layout, view: &View, update: Value) -> Result<Value> {
    if view.sizes.contains(&0) {
        return Ok(base);
    }
    let carrier = carrier(layout, view);
    let typed = bitcast::reinterpret(b, base, layout.dtype, carrier)?;
    let update =
        if carrier == view.dtype { update } else { b.bitcast_convert(update, carrier.element_type())? };
    let update = unexpanded(b, view, update)?;
    let typed_dims = Dims::from_slice(b.dims(typed));
    let written = match view.recipe {
        Recipe::Slices(slices) => write_slices(b, typed, slices, view, update)?,
        Recipe::Gather => {
            let flat_len = typed_dims.iter().product();
            let flat = b.reshape(typed, &[flat_len])?;
            let indices = linear_indices(b, view, &unexpanded_sizes(view), flat_len)?;
            scatter_elements(b, flat, indices, update, is_disjoint(view))?
        }
    };
    let written = b.reshape(written, &typed_dims)?;
    bitcast::restore(b, written, carrier, base, layout.dtype)
}

/// One of the elements that expanded dimensions (stride 0) write to the same place. Operators that write such views at
/// all write one value.
fn unexpanded(b: &mut Builder, view: &View, update: Value) -> Result<Value> {
    let limits = unexpanded_sizes(view);
    if limits[..] == *view.sizes {
        return Ok(update);
    }
    b.slice(update, &Dims::from_elem(0, limits.len()), &limits, &Dims::from_elem(1, limits.len()))
}

fn unexpanded_sizes(view: &View) -> Dims {
    view.sizes.iter().zip(view.strides).map(|(&n, &stride)| if stride == 0 { 1 } else { n }).collect()
}

/// Whether no two elements lie in one place, expanded dimensions aside; `false` when in doubt.
fn is_disjoint(view: &View) -> bool {
    let mut dims: Vec<(i64, i64)> = view
        .sizes
        .iter()
        .zip(view.strides)
        .map(|(&n, &s)| (s, n))
        .filter(|&(s, n)| n != 1 && s != 0)
        .collect();
    dims.sort_unstable();
    let mut reach = 0;
    dims.iter().all(|&(stride, n)| {
        let disjoint = stride > reach;
        reach += stride * (n - 1);
        disjoint
    })
}

fn read_slices(b: &mut Builder, base: Value, slices: &Slices, view: &View) -> Result<Value> {
    let refined = reshape_if_needed(b, base, &slices.refined)?;
    let cut = cut(b, refined, slices, &view.starts)?;
    // Drop the dimensions of the base that the view does not have, order the others as the view does.
    let used: Vec<usize> = (0..slices.refined.len())
        .filter(|d| slices.dims.iter().any(|(_, merge)| merge.contains(d)))
        .collect();
    let used_dims: Dims = used.iter().map(|&d| slices.cuts[d].size).collect();
    let kept = reshape_if_needed(b, cut, &used_dims)?;
    let order: Vec<i64> = slices
        .dims
        .iter()
        .flat_map(|(_, merge)| merge.iter().map(|d| used.iter().position(|u| u == d).unwrap_or(0) as i64))
        .collect();
    let ordered = transpose_if_needed(b, kept, &order)?;
    let unexpanded = unexpanded_sizes(view);
    let shaped = reshape_if_needed(b, ordered, &unexpanded)?;
    if unexpanded[..] == *view.sizes {
        return Ok(shaped);
    }
    let map: Vec<i64> = (0..view.sizes.len() as i64).collect();
    b.broadcast_in_dim(shaped, view.sizes, &map)
}

/// The sub-box that the cuts select, one dimension per refined dimension.
fn cut(b: &mut Builder, refined: Value, slices: &Slices, starts: &[Start]) -> Result<Value> {
    if slices.covers_base() {
        return Ok(refined);
    }
    let spans: Dims = slices.cuts.iter().map(|cut| (cut.size - 1) * cut.step + 1).collect();
    let steps: Dims = slices.cuts.iter().map(|cut| cut.step).collect();
    if let Some(fixed) = static_starts(starts) {
        let limits: Dims = fixed.iter().zip(&spans).map(|(start, span)| start + span).collect();
        return b.slice(refined, &fixed, &limits, &steps);
    }
    let operands = start_operands(b, starts)?;
    let window = b.dynamic_slice(refined, &operands, &spans)?;
    if steps.iter().all(|&step| step == 1) {
        return Ok(window);
    }
    let zeros = Dims::from_elem(0, spans.len());
    b.slice(window, &zeros, &spans, &steps)
}

fn write_slices(b: &mut Builder, base: Value, slices: &Slices, view: &View, update: Value) -> Result<Value> {
    // Undo the merges, then the order, then put back the dimensions of the base that the view does not have.
    let split: Dims =
        slices.dims.iter().flat_map(|(_, merge)| merge.iter().map(|&d| slices.cuts[d].size)).collect();
    let split_value = reshape_if_needed(b, update, &split)?;
    let order: Vec<usize> = slices.dims.iter().flat_map(|(_, merge)| merge.iter().copied()).collect();
    let mut inverse: Vec<(usize, i64)> = order.iter().enumerate().map(|(i, &d)| (d, i as i64)).collect();
    inverse.sort_unstable();
    let inverse: Vec<i64> = inverse.into_iter().map(|(_, i)| i).collect();
    let ordered = transpose_if_needed(b, split_value, &inverse)?;
    let cut_dims: Dims = slices.cuts.iter().map(|cut| cut.size).collect();
    let mut block = reshape_if_needed(b, ordered, &cut_dims)?;
    if slices.covers_base() {
        return Ok(block);
    }
    let refined = reshape_if_needed(b, base, &slices.refined)?;
    let starts = start_operands(b, &view.starts)?;
    if slices.cuts.iter().any(|cut| cut.step != 1) {
        block = interleave(b, refined, slices, &starts, block)?;
    }
    b.dynamic_update_slice(refined, block, &starts)
}

/// The window of `refined` that a stepped cut spans, with every step-th element replaced by `block`'s.
fn interleave(
    b: &mut Builder,
    refined: Value,
    slices: &Slices,
    starts: &[Value],
    block: Value,
) -> Result<Value> {
    let rank = slices.cuts.len();
    let spans: Dims = slices.cuts.iter().map(|cut| (cut.size - 1) * cut.step + 1).collect();
    let interior: Dims = slices.cuts.iter().map(|cut| cut.step - 1).collect();
    let none = Dims::from_elem(0, rank);
    let window = b.dynamic_slice(refined, starts, &spans)?;
    let elem = b.elem(block);
    let zero = b.constant_i64(elem, 0)?;
    let spread = b.pad(block, zero, &none, &none, &interior)?;
    let mut mask: Option<Value> = None;
    for (dim, cut) in slices.cuts.iter().enumerate().filter(|(_, cut)| cut.step != 1) {
        let iota = b.iota(TensorType::new(ElementType::S32, &spans), dim as i64)?;
        let step = b.splat(ElementType::S32, &spans, cut.step)?;
        let remainder = b.remainder(iota, step)?;
        let zero = b.splat(ElementType::S32, &spans, 0)?;
        let on_step = b.compare(remainder, zero, Direction::Eq)?;
        mask = Some(match mask {
            Some(mask) => b.and(mask, on_step)?,
            None => on_step,
        });
    }
    match mask {
        Some(mask) => b.select(mask, spread, window),
        None => Ok(spread),
    }
}

/// Linear index into the flat base of elements of the view: all of them, or one of each expanded dimension.
fn linear_indices(b: &mut Builder, view: &View, sizes: &[i64], flat_len: i64) -> Result<Value> {
    let elem = index_elem(flat_len);
    let mut index = match view.starts.first() {
        Some(Start::Operand(value)) => {
            let offset = b.convert(*value, elem)?;
            b.broadcast_scalar(offset, sizes)?
        }
        Some(Start::Static(offset)) => b.splat(elem, sizes, *offset)?,
        None => b.splat(elem, sizes, 0)?,
    };
    for (dim, &stride) in view.strides.iter().enumerate() {
        if sizes[dim] == 1 || stride == 0 {
            continue;
        }
        let iota = b.iota(TensorType::new(elem, sizes), dim as i64)?;
        let stride = b.splat(elem, sizes, stride)?;
        let term = b.multiply(iota, stride)?;
        index = b.add(index, term)?;
    }
    Ok(index)
}

fn index_elem(len: i64) -> ElementType {
    if len <= i32::MAX as i64 { ElementType::S32 } else { ElementType::S64 }
}

/// `flat[indices]`, with the sizes of `indices`.
fn gather_elements(b: &mut Builder, flat: Value, indices: Value) -> Result<Value> {
    let sizes = Dims::from_slice(b.dims(indices));
    let numbers = stablehlo::GatherDimensionNumbers {
        collapsed_slice_dims: Dims::from_slice(&[0]),
        start_index_map: Dims::from_slice(&[0]),
        index_vector_dim: sizes.len() as i64,
        ..Default::default()
    };
    b.gather(flat, indices, &numbers, &[1], false)
}

fn scatter_elements(
    b: &mut Builder,
    flat: Value,
    indices: Value,
    update: Value,
    unique_indices: bool,
) -> Result<Value> {
    let numbers = stablehlo::ScatterDimensionNumbers {
        inserted_window_dims: Dims::from_slice(&[0]),
        scatter_dims_to_operand_dims: Dims::from_slice(&[0]),
        index_vector_dim: b.dims(indices).len() as i64,
        ..Default::default()
    };
    let flags = stablehlo::ScatterFlags { indices_are_sorted: false, unique_indices };
    let written = b.scatter(&[flat], indices, &[update], &numbers, flags, |_, args| Ok(vec![args[1]]))?;
    Ok(written[0])
}

fn static_starts(starts: &[Start]) -> Option<Dims> {
    starts
        .iter()
        .map(|start| match start {
            Start::Static(value) => Some(*value),
            Start::Operand(_) => None,
        })
        .collect()
}

fn start_operands(b: &mut Builder, starts: &[Start]) -> Result<Vec<Value>> {
    let elem = starts
        .iter()
        .find_map(|start| match start {
            Start::Operand(value) => Some(b.elem(*value)),
            Start::Static(_) => None,
        })
        .unwrap_or(ElementType::S32);
    starts
        .iter()
        .map(|start| match start {
            Start::Operand(value) => Ok(*value),
            Start::Static(value) => b.constant_i64(elem, *value),
        })
        .collect()
}

pub fn reshape_if_needed(b: &mut Builder, value: Value, dims: &[i64]) -> Result<Value> {
    if b.dims(value) == dims { Ok(value) } else { b.reshape(value, dims) }
}

pub fn transpose_if_needed(b: &mut Builder, value: Value, order: &[i64]) -> Result<Value> {
    if order.iter().enumerate().all(|(i, &d)| i as i64 == d) { Ok(value) } else { b.transpose(value, order) }
}
