//! Elements chosen by their values: the number of results is known only once the program has run.

use smallvec::smallvec;
use stablehlo::{Builder, Direction, ElementType, TensorType, Value};

use crate::call::{Call, Outputs};
use crate::dtype::DType;
use crate::error::LoweringError;
use crate::graph::{Dims, TensorMeta};
use crate::registry::OpDef;

type Result<T> = std::result::Result<T, LoweringError>;

pub const OPS: &[OpDef] = &[
    OpDef::new("aten::nonzero", nonzero).bounded(every_index),
    OpDef::new("aten::masked_select", masked_select).bounded(every_element),
];

fn row_major(dtype: DType, sizes: &[i64]) -> TensorMeta {
    let mut strides = Dims::from_elem(1, sizes.len());
    for d in (1..sizes.len()).rev() {
        strides[d - 1] = strides[d] * sizes[d].max(1);
    }
    TensorMeta { dtype, sizes: Dims::from_slice(sizes), strides }
}

fn every_index(tensors: &[TensorMeta]) -> TensorMeta {
    let sizes = tensors.first().map_or(&[][..], |tensor| &tensor.sizes);
    let (total, rank) = (sizes.iter().product(), sizes.len() as i64);
    TensorMeta {
        dtype: DType::Int64,
        sizes: Dims::from_slice(&[total, rank]),
        strides: Dims::from_slice(&[1, total.max(1)]),
    }
}

fn every_element(tensors: &[TensorMeta]) -> TensorMeta {
    let sizes = broadcast_sizes(tensors);
    let dtype = tensors.first().map_or(DType::Float32, |tensor| tensor.dtype);
    row_major(dtype, &[sizes.iter().product()])
}

/// The common sizes; extents that do not fit are left for the lowering to refuse.
fn broadcast_sizes(tensors: &[TensorMeta]) -> Dims {
    let rank = tensors.iter().map(|tensor| tensor.sizes.len()).max().unwrap_or(0);
    let mut sizes = Dims::from_elem(1, rank);
    for tensor in tensors {
        for (size, &n) in sizes[rank - tensor.sizes.len()..].iter_mut().zip(&tensor.sizes) {
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

/// masked_select(self, mask)
fn masked_select(c: &mut Call<'_>) -> Result<Outputs> {
    let (x, mask) = (c.tensor(0)?, c.tensor(1)?);
    if mask.dtype != DType::Bool {
        return Err(LoweringError::invalid("masked_select: expected BoolTensor for mask"));
    }
    let meta = |tensor: &crate::call::Tensor| row_major(tensor.dtype, &tensor.sizes);
    let sizes = broadcast_sizes(&[meta(&x), meta(&mask)]);
    let total: i64 = sizes.iter().product();
    let value = c.broadcast(&x, x.dtype, &sizes)?;
    let flags = c.broadcast(&mask, DType::Bool, &sizes)?;
    let value = c.b.reshape(value, &[total])?;
    let flags = c.b.reshape(flags, &[total])?;
    let (chosen, count) = chosen_first(c.b, flags, value)?;
    Ok(Outputs(smallvec![Some(chosen), Some(count)]))
}

/// `payload` with the flagged elements in front, in order, and how many there are.
fn chosen_first(b: &mut Builder, flags: Value, payload: Value) -> Result<(Value, Value)> {
    let total = b.dims(flags)[0];
    let wide = b.convert(flags, ElementType::S64)?;
    let count = b.reduce_add(wide, &[0])?;
    let one = b.splat(ElementType::S32, &[total], 1i64)?;
    let narrow = b.convert(flags, ElementType::S32)?;
    let order = b.subtract(one, narrow)?;
    let sorted = b.sort(&[order, payload], 0, true, |b, args| b.compare(args[0], args[1], Direction::Lt))?;
    Ok((sorted[1], count))
}
