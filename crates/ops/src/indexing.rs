//! Reads at indices: embedding, index_select, gather, take, advanced indexing.

use stablehlo::{Direction, Value};

use crate::arguments::{Arguments, require};
use crate::call::{Call, Outputs, Tensor, wrap_dim};
use crate::convert;
use crate::dtype::DType;
use crate::error::{CheckKind, LoweringError};
use crate::graph::{Dims, Number};
use crate::indices::{
    Combine, InRange, Negative, OutOfRange, gather_along, gather_at, ignored_outside, in_range,
    index_vectors, put, take,
};
use crate::registry::OpDef;
use crate::views::{operand, slice_dim};

type Result<T> = std::result::Result<T, LoweringError>;

pub const OPS: &[OpDef] = &[
    OpDef::new("aten::embedding", embedding).refuses(refuse_embedding),
    OpDef::new("aten::embedding_dense_backward", embedding_dense_backward),
    OpDef::new("aten::index_select", index_select),
    OpDef::new("aten::gather", gather),
    OpDef::new("aten::take", take_flat),
    OpDef::new("aten::index.Tensor", |c| index(c, true)),
    OpDef::new("aten::_unsafe_index.Tensor", |c| index(c, false)),
];

fn refuse_embedding(arguments: &Arguments<'_>) -> Result<()> {
    let (weight, index) = (arguments.tensor(0)?, arguments.tensor(1)?);
    require(weight.sizes.len() == 2, || "'weight' must be 2-D".to_owned())?;
    require(matches!(index.dtype, DType::Int64 | DType::Int32), || {
        format!(
            "Expected tensor for argument #1 'indices' to have one of the following scalar types: Long, Int; but got \
             torch.{}Tensor instead (while checking arguments for embedding)",
            index.dtype.name_in_cpp()
        )
    })
}

fn embedding(c: &mut Call<'_>) -> Result<Outputs> {
    let (weight, index) = (operand(c)?, c.tensor(1)?);
    let [rows, _] = *c.b.dims(weight) else {
        return Err(LoweringError::invalid("'weight' must be 2-D"));
    };
    let index = in_range(c, &index, rows, Negative::Refused, Some(&OutOfRange::in_self()))?;
    Ok(take_or_nothing(c, weight, 0, index)?.into())
}

/// [`take`], where an empty result must not depend on the operand having elements.
fn take_or_nothing(c: &mut Call<'_>, x: Value, dim: usize, index: Value) -> Result<Value> {
    let out = c.out(0)?.clone();
    if out.sizes.contains(&0) {
        return c.full(Number::Int(0), out.dtype, &out.sizes);
    }
    take(c.b, x, dim, index)
}

/// Rows of the gradient added up per index; the padding row gets none. Scaling by frequency divides by how often the
/// index occurs. Indices out of range are skipped, as the CPU kernel skips them.
fn embedding_dense_backward(c: &mut Call<'_>) -> Result<Outputs> {
    let (grad, index) = (c.tensor(0)?, c.tensor(1)?);
    let out = c.out(0)?.clone();
    let (rows, padding) = (out.sizes[0], c.int(3)?);
    let acc = out.dtype.opmath();
    let places = ignored_outside(c, &index, rows)?;
    let mut updates = c.value(&grad, acc)?;
    let along: Dims = (0..index.rank() as i64).collect();
    let update_dims = Dims::from_slice(c.b.dims(updates));
    if padding >= 0 {
        let number = convert::splat(c.b, places, Number::Int(padding))?;
        let is_padding = c.b.compare(places, number, Direction::Eq)?;
        let is_padding = c.b.broadcast_in_dim(is_padding, &update_dims, &along)?;
        let zero = convert::splat(c.b, updates, Number::Int(0))?;
        updates = c.b.select(is_padding, zero, updates)?;
    }
    if c.bool(4)? && !index.sizes.contains(&0) {
        let zeros = c.full(Number::Int(0), acc, &[rows])?;
        let ones = c.full(Number::Int(1), acc, &index.sizes)?;
        let counts = put(c.b, zeros, 0, places, ones, Combine::Add)?;
        // A gather clamps, so a skipped index divides by some count or 0; its update is not used.
        let counts = take(c.b, counts, 0, places)?;
        let counts = c.b.broadcast_in_dim(counts, &update_dims, &along)?;
        updates = c.b.divide(updates, counts)?;
    }
    let zeros = c.full(Number::Int(0), acc, &out.sizes)?;
    let sums = put(c.b, zeros, 0, places, updates, Combine::Add)?;
    Ok(c.convert(sums, out.dtype)?.into())
}

fn index_select(c: &mut Call<'_>) -> Result<Outputs> {
    let (x, index) = (c.tensor(0)?, c.tensor(2)?);
    let dim = wrap_dim(c.int(1)?, x.rank())?;
    let sizes = at_least_1d(&x.sizes);
    let value = c.value(&x, x.dtype)?;
    let value = c.b.reshape(value, &sizes)?;
    let index = in_range(c, &index, sizes[dim], Negative::Refused, Some(&OutOfRange::in_self()))?;
    let count: i64 = c.b.dims(index).iter().product();
    let index = c.b.reshape(index, &[count])?;
    let out = c.out(0)?.sizes.clone();
    let taken = take_or_nothing(c, value, dim, index)?;
    Ok(c.b.reshape(taken, &out)?.into())
}

pub fn at_least_1d(sizes: &[i64]) -> Dims {
    if sizes.is_empty() { Dims::from_elem(1, 1) } else { Dims::from_slice(sizes) }
}

fn gather(c: &mut Call<'_>) -> Result<Outputs> {
    let (x, index) = (c.tensor(0)?, c.tensor(2)?);
    let out = c.out(0)?.clone();
    if index.numel() == 0 {
        return Ok(c.full(Number::Int(0), out.dtype, &out.sizes)?.into());
    }
    let dim = wrap_dim(c.int(1)?, x.rank())?;
    let (sizes, index_sizes) = (at_least_1d(&x.sizes), at_least_1d(&index.sizes));
    let error = OutOfRange::of_dimension(CheckKind::Runtime, dim, sizes[dim]);
    let index = in_range(c, &index, sizes[dim], Negative::Refused, Some(&error))?;
    let index = c.b.reshape(index, &index_sizes)?;
    let value = c.value(&x, x.dtype)?;
    let mut value = c.b.reshape(value, &sizes)?;
    for (other, &size) in index_sizes.iter().enumerate().filter(|(other, _)| *other != dim) {
        value = slice_dim(c.b, value, other, 0, size, 1)?;
    }
    let taken = gather_along(c.b, value, dim, index)?;
    Ok(c.b.reshape(taken, &out.sizes)?.into())
}

fn take_flat(c: &mut Call<'_>) -> Result<Outputs> {
    let (x, index) = (c.tensor(0)?, c.tensor(1)?);
    let error = OutOfRange {
        kind: CheckKind::Index,
        message: format!("out of range: tried to access an index on a tensor of {} elements.", x.numel()),
    };
    if x.numel() == 0 && index.numel() > 0 {
        let message = "take(): tried to take from an empty tensor".into();
        return Err(LoweringError::InvalidArgument { kind: CheckKind::Index, message });
    }
    let value = c.value(&x, x.dtype)?;
    let flat = c.b.reshape(value, &[x.numel()])?;
    let index = in_range(c, &index, x.numel(), Negative::FromEnd, Some(&error))?;
    Ok(take_or_nothing(c, flat, 0, index)?.into())
}

/// The indexed dimensions of `aten::index` and where their common dimensions go in the result.
pub struct Indexed {
    pub dims: Vec<usize>,
    pub vectors: Value,
    /// Dimensions that the index tensors broadcast to.
    pub sizes: Dims,
    /// Their position: in place of the indexed dimensions if those are adjacent, else in front.
    pub at: usize,
}

impl Indexed {
    /// `None` if no dimension is indexed.
    pub fn new(
        c: &mut Call<'_>,
        x: &Tensor,
        indices: &[Option<Tensor>],
        checked: bool,
        in_range: InRange,
    ) -> Result<Option<Self>> {
        if indices.len() > x.rank() {
            return Err(LoweringError::InvalidArgument {
                kind: CheckKind::Index,
                message: format!(
                    "too many indices for tensor of dimension {} (got {})",
                    x.rank(),
                    indices.len()
                ),
            });
        }
        let given: Vec<(usize, &Tensor)> =
            indices.iter().enumerate().filter_map(|(dim, index)| Some((dim, index.as_ref()?))).collect();
        if given.iter().any(|(_, index)| is_mask(index)) {
            return Err(LoweringError::unsupported("masks as indices: the result's size depends on values"));
        }
        let Some(&(first, _)) = given.first() else { return Ok(None) };
        let dims: Vec<usize> = given.iter().map(|(dim, _)| *dim).collect();
        let adjacent = dims.windows(2).all(|pair| pair[1] == pair[0] + 1);
        let sizes = broadcast_sizes(given.iter().map(|(_, index)| &index.sizes[..]))?;
        let nothing = sizes.contains(&0);
        let mut places = Vec::with_capacity(given.len());
        for (dim, index) in given {
            let size = x.sizes[dim];
            let error = OutOfRange::of_dimension(CheckKind::Index, dim, size);
            let error = checked.then_some(&error);
            places.push(if nothing {
                c.value(index, DType::Int32)?
            } else {
                in_range(c, index, size, Negative::FromEnd, error)?
            });
        }
        let vectors = index_vectors(c.b, &places, &sizes)?;
        Ok(Some(Self { dims, vectors, sizes, at: if adjacent { first } else { 0 } }))
    }

    /// The shape of a read.
    pub fn result_sizes(&self, x: &Tensor) -> Dims {
        let mut sizes: Dims =
            (0..x.rank()).filter(|dim| !self.dims.contains(dim)).map(|dim| x.sizes[dim]).collect();
        sizes.insert_from_slice(self.at, &self.sizes);
        sizes
    }
}

/// Bool tensors select by position; uint8 ones as well, which PyTorch deprecates.
pub fn is_mask(index: &Tensor) -> bool {
    matches!(index.dtype, DType::Bool | DType::UInt8)
}

pub fn broadcast_sizes<'s>(all: impl Iterator<Item = &'s [i64]> + Clone) -> Result<Dims> {
    let rank = all.clone().map(<[i64]>::len).max().unwrap_or(0);
    let mut sizes = Dims::from_elem(1, rank);
    for own in all {
        for (size, &n) in sizes[rank - own.len()..].iter_mut().zip(own) {
            if *size == 1 {
                *size = n;
            } else if n != 1 && n != *size {
                return Err(LoweringError::InvalidArgument {
                    kind: CheckKind::Index,
                    message: "shape mismatch: indexing tensors could not be broadcast together".into(),
                });
            }
        }
    }
    Ok(sizes)
}

fn index(c: &mut Call<'_>, checked: bool) -> Result<Outputs> {
    let (x, indices) = (c.tensor(0)?, c.opt_tensors(1)?);
    let out = c.out(0)?.clone();
    let value = c.value(&x, x.dtype)?;
    // Where nothing is read, nothing is out of range.
    let checked = checked && !out.sizes.contains(&0);
    let Some(indexed) = Indexed::new(c, &x, &indices, checked, in_range)? else { return Ok(value.into()) };
    if out.sizes.contains(&0) {
        return Ok(c.full(Number::Int(0), out.dtype, &out.sizes)?.into());
    }
    Ok(gather_at(c.b, value, &indexed.dims, indexed.vectors, indexed.at)?.into())
}
