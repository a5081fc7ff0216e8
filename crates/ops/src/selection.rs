//! Elements chosen by their values: the number of results is known only once the program has run.

use smallvec::smallvec;
use stablehlo::{Builder, Direction, ElementType, TensorType, Value};

use crate::arguments::Arguments;
use crate::bounds::Bounded;
use crate::call::{Call, Outputs};
use crate::dtype::DType;
use crate::error::LoweringError;
use crate::graph::{Dims, Number, TensorMeta};
use crate::indices::iota;
use crate::registry::OpDef;
use crate::views::slice_dim;

type Result<T> = std::result::Result<T, LoweringError>;

pub const OPS: &[OpDef] = &[
    OpDef::new("aten::nonzero", nonzero).bounded(every_index),
    OpDef::new("aten::nonzero_static", nonzero_static),
    OpDef::new("aten::masked_scatter_backward", masked_scatter_backward),
    OpDef::new("aten::masked_select", masked_select).bounded(every_element),
];

/// Positions are laid out column by column, as PyTorch does on every device.
fn every_index(args: &Arguments<'_>) -> Result<Vec<Bounded>> {
    let sizes = &args.tensor(0)?.sizes;
    let (total, rank) = (sizes.iter().product::<i64>(), sizes.len() as i64);
    let meta = TensorMeta {
        dtype: DType::Int64,
        sizes: Dims::from_slice(&[total, rank]),
        strides: Dims::from_slice(&[1, total.max(1)]),
    };
    Ok(vec![Bounded { meta, dim: Some(0) }])
}

fn every_element(args: &Arguments<'_>) -> Result<Vec<Bounded>> {
    let (x, mask) = (args.tensor(0)?, args.tensor(1)?);
    let total = broadcast_sizes([&x.sizes, &mask.sizes]).iter().product();
    Ok(vec![Bounded::rows(x.dtype, &[total])])
}

/// The common sizes; extents that do not fit are left for the lowering to refuse.
fn broadcast_sizes(operands: [&[i64]; 2]) -> Dims {
    let rank = operands.iter().map(|sizes| sizes.len()).max().unwrap_or(0);
    let mut sizes = Dims::from_elem(1, rank);
    for operand in operands {
        for (size, &n) in sizes[rank - operand.len()..].iter_mut().zip(operand) {
            if n != 1 {
                *size = n;
            }
        }
    }
    sizes
}

/// nonzero(self): column by column, as PyTorch lays it out on every device. The columns are as long as there are rows,
/// which only the program knows, so each is written over what the one before it has to spare.
fn nonzero(c: &mut Call<'_>) -> Result<Outputs> {
    let x = c.tensor(0)?;
    let value = c.value(&x, DType::Bool)?;
    let total: i64 = x.sizes.iter().product();
    let rank = x.sizes.len() as i64;
    let flags = c.b.reshape(value, &[total])?;
    let elem = DType::Int64.element_type();
    let linear = c.b.iota(TensorType::new(elem, &[total]), 0)?;
    let (sorted, count) = chosen_first(c.b, flags, linear)?;
    if rank == 0 || total == 0 {
        let rows = c.b.splat(elem, &[total, rank], 0i64)?;
        return Ok(Outputs(smallvec![Some(rows), Some(count)]));
    }
    let mut rest = sorted;
    let mut columns = Vec::with_capacity(x.sizes.len());
    for &extent in x.sizes.iter().rev() {
        let extent = c.b.splat(elem, &[total], extent)?;
        columns.push(c.b.remainder(rest, extent)?);
        rest = c.b.divide(rest, extent)?;
    }
    let mut packed = c.b.splat(elem, &[rank * total], 0i64)?;
    let mut start = c.b.splat(elem, &[], 0i64)?;
    for &column in columns.iter().rev() {
        packed = c.b.dynamic_update_slice(packed, column, &[start])?;
        start = c.b.add(start, count)?;
    }
    let columns = c.b.reshape(packed, &[rank, total])?;
    let rows = c.b.transpose(columns, &[1, 0])?;
    Ok(Outputs(smallvec![Some(rows), Some(count)]))
}

/// aten::nonzero_static(self, size, fill_value=-1): the first `size` rows, filled up.
fn nonzero_static(c: &mut Call<'_>) -> Result<Outputs> {
    let (x, fill) = (c.tensor(0)?, c.int(2)?);
    let out = c.out(0)?.clone();
    if out.sizes.contains(&0) {
        return Ok(c.full(Number::Int(0), out.dtype, &out.sizes)?.into());
    }
    let (size, total) = (out.sizes[0], x.numel());
    let value = c.value(&x, DType::Bool)?;
    let flags = c.b.reshape(value, &[total])?;
    let linear = iota(c.b, DType::Int64, &[total], 0)?;
    let (chosen, count) = chosen_first(c.b, flags, linear)?;
    let kept = slice_dim(c.b, chosen, 0, 0, size.min(total), 1)?;
    let zero = c.full(Number::Int(0), DType::Int64, &[])?;
    let mut rest = c.b.pad(kept, zero, &[0], &[(size - total).max(0)], &[0])?;
    let mut columns = Vec::with_capacity(x.rank());
    for &extent in x.sizes.iter().rev() {
        // Without elements there are no positions.
        let extent = c.full(Number::Int(extent.max(1)), DType::Int64, &[size])?;
        let column = c.b.remainder(rest, extent)?;
        columns.push(c.b.reshape(column, &[size, 1])?);
        rest = c.b.divide(rest, extent)?;
    }
    columns.reverse();
    let rows = c.b.concatenate(&columns, 1)?;
    let row = iota(c.b, DType::Int64, &out.sizes, 0)?;
    let count = c.b.broadcast_scalar(count, &out.sizes)?;
    let is_valid = c.b.compare(row, count, Direction::Lt)?;
    let fill = c.full(Number::Int(fill), DType::Int64, &out.sizes)?;
    Ok(c.b.select(is_valid, rows, fill)?.into())
}

/// aten::masked_scatter_backward(grad, mask, sizes): the elements at the mask, then zeros, in a tensor of these sizes.
fn masked_scatter_backward(c: &mut Call<'_>) -> Result<Outputs> {
    let (grad, mask) = (c.tensor(0)?, c.tensor(1)?);
    let out = c.out(0)?.clone();
    let sizes = broadcast_sizes([&grad.sizes, &mask.sizes]);
    let (selectable, total) = (sizes.iter().product::<i64>(), out.sizes.iter().product::<i64>());
    let value = c.broadcast(&grad, out.dtype, &sizes)?;
    let flags = c.broadcast(&mask, DType::Bool, &sizes)?;
    let value = c.b.reshape(value, &[selectable])?;
    let flags = c.b.reshape(flags, &[selectable])?;
    let (chosen, count) = chosen_first(c.b, flags, value)?;
    let place = iota(c.b, DType::Int64, &[selectable], 0)?;
    let count = c.b.broadcast_scalar(count, &[selectable])?;
    let is_chosen = c.b.compare(place, count, Direction::Lt)?;
    let zero = c.full(Number::Int(0), out.dtype, &[])?;
    let zeros = c.b.broadcast_scalar(zero, &[selectable])?;
    let value = c.b.select(is_chosen, chosen, zeros)?;
    let value = slice_dim(c.b, value, 0, 0, selectable.min(total), 1)?;
    let value = c.b.pad(value, zero, &[0], &[(total - selectable).max(0)], &[0])?;
    Ok(c.b.reshape(value, &out.sizes)?.into())
}

/// masked_select(self, mask)
fn masked_select(c: &mut Call<'_>) -> Result<Outputs> {
    let (x, mask) = (c.tensor(0)?, c.tensor(1)?);
    if mask.dtype != DType::Bool {
        return Err(LoweringError::invalid("masked_select: expected BoolTensor for mask"));
    }
    let sizes = broadcast_sizes([&x.sizes, &mask.sizes]);
    let total: i64 = sizes.iter().product();
    let value = c.broadcast(&x, x.dtype, &sizes)?;
    let flags = c.broadcast(&mask, DType::Bool, &sizes)?;
    let value = c.b.reshape(value, &[total])?;
    let flags = c.b.reshape(flags, &[total])?;
    let (chosen, count) = chosen_first(c.b, flags, value)?;
    Ok(Outputs(smallvec![Some(chosen), Some(count)]))
}

/// `payload` with the flagged elements in front, in order, and how many there are.
pub fn chosen_first(b: &mut Builder, flags: Value, payload: Value) -> Result<(Value, Value)> {
    let total = b.dims(flags)[0];
    let wide = b.convert(flags, ElementType::S64)?;
    let count = b.reduce_add(wide, &[0])?;
    let one = b.splat(ElementType::S32, &[total], 1i64)?;
    let narrow = b.convert(flags, ElementType::S32)?;
    let order = b.subtract(one, narrow)?;
    let sorted = b.sort(&[order, payload], 0, true, |b, args| b.compare(args[0], args[1], Direction::Lt))?;
    Ok((sorted[1], count))
}
