//! `as_strided` on values of a graph. Strides and offsets address the storage of the operand, which a graph has only
//! through the operand's own strides: its elements in memory order, from offset 0. Eager calls go to PyTorch's kernels,
//! which have the storage.

use stablehlo::{Builder, Value};

use crate::call::{Call, Outputs};
use crate::error::LoweringError;
use crate::graph::{Arg, Dims, Number, TensorMeta, ValueRef};
use crate::indices::{Combine, index_dtype, iota, put, take};
use crate::registry::OpDef;

type Result<T> = std::result::Result<T, LoweringError>;

pub const OPS: &[OpDef] = &[
    OpDef::new("aten::as_strided", as_strided).composite(),
    OpDef::new("aten::as_strided_copy", as_strided).composite(),
    OpDef::new("prims::as_strided", as_strided).composite(),
    OpDef::new("aten::as_strided_scatter", as_strided_scatter).composite(),
    OpDef::new("prims::as_strided_scatter", as_strided_scatter).composite(),
];

fn operand_meta(c: &Call<'_>) -> Result<TensorMeta> {
    let meta = match c.node.args.first() {
        Some(Arg::Tensor(ValueRef::Input(index))) => c.graph.inputs.get(*index).map(|input| &input.meta),
        Some(Arg::Tensor(ValueRef::Node(node, output))) => {
            c.graph.nodes.get(*node).and_then(|node| node.outputs.get(*output)?.as_ref())
        }
        _ => None,
    };
    meta.cloned().ok_or_else(|| LoweringError::Argument {
        index: 0,
        expected: "a tensor",
        got: format!("{:?}", c.node.args.first()),
    })
}

/// The dimensions of a tensor that has no gaps and no overlaps but expanded dimensions, outermost in memory first.
fn memory_order(sizes: &[i64], strides: &[i64]) -> Result<Vec<usize>> {
    if strides.len() != sizes.len() {
        return Err(LoweringError::unsupported("as_strided of a tensor without strides"));
    }
    let mut order: Vec<usize> =
        (0..sizes.len()).filter(|&dim| sizes[dim] != 1 && strides[dim] != 0).collect();
    order.sort_by_key(|&dim| std::cmp::Reverse(strides[dim]));
    let mut expected = 1;
    for &dim in order.iter().rev() {
        if strides[dim] != expected {
            return Err(LoweringError::unsupported(format!(
                "as_strided of a tensor with gaps (sizes {sizes:?}, strides {strides:?})"
            )));
        }
        expected *= sizes[dim];
    }
    Ok(order)
}

/// Elements of a dense operand in memory order.
fn to_storage(b: &mut Builder, x: Value, order: &[usize]) -> Result<Value> {
    let sizes = Dims::from_slice(b.dims(x));
    let rest: Vec<usize> = (0..sizes.len()).filter(|dim| !order.contains(dim)).collect();
    let mut limits = sizes.clone();
    rest.iter().for_each(|&dim| limits[dim] = 1);
    let zeros = Dims::from_elem(0, sizes.len());
    let ones = Dims::from_elem(1, sizes.len());
    let x = b.slice(x, &zeros, &limits, &ones)?;
    let permutation: Dims = order.iter().chain(&rest).map(|&dim| dim as i64).collect();
    let x = b.transpose(x, &permutation)?;
    Ok(b.reshape(x, &[limits.iter().product()])?)
}

/// The other way: `flat` in memory order as a value of `sizes`.
fn from_storage(b: &mut Builder, flat: Value, sizes: &[i64], order: &[usize]) -> Result<Value> {
    let ordered: Dims = order.iter().map(|&dim| sizes[dim]).collect();
    let shaped = b.reshape(flat, &ordered)?;
    let map: Dims = order.iter().map(|&dim| dim as i64).collect();
    Ok(b.broadcast_in_dim(shaped, sizes, &map)?)
}

struct Target {
    sizes: Dims,
    strides: Vec<i64>,
    offset: i64,
}

impl Target {
    fn read(c: &Call<'_>, first: usize) -> Result<Self> {
        let (sizes, strides) = (Dims::from_vec(c.ints(first)?), c.ints(first + 1)?);
        if sizes.len() != strides.len() || strides.iter().any(|&stride| stride < 0) {
            return Err(LoweringError::invalid(format!(
                "mismatch in length of strides and shape, or negative strides: sizes {sizes:?}, strides {strides:?}"
            )));
        }
        Ok(Self { sizes, strides, offset: c.opt_int(first + 2)?.unwrap_or(0) })
    }

    fn check_inside(&self, len: i64) -> Result<()> {
        let last: i64 = self.sizes.iter().zip(&self.strides).map(|(size, stride)| (size - 1) * stride).sum();
        if self.offset < 0 || self.offset + last >= len {
            return Err(LoweringError::unsupported(format!(
                "as_strided beyond the {len} elements of the operand (sizes {:?}, strides {:?}, offset {})",
                self.sizes, self.strides, self.offset
            )));
        }
        Ok(())
    }

    /// Positions in the storage, one per element.
    fn positions(&self, b: &mut Builder, len: i64) -> Result<Value> {
        let dtype = index_dtype(len);
        let elem = dtype.element_type();
        let mut sum = b.splat(elem, &self.sizes, self.offset)?;
        for (dim, &stride) in self.strides.iter().enumerate() {
            if self.sizes[dim] > 1 && stride != 0 {
                let along = iota(b, dtype, &self.sizes, dim)?;
                let stride = b.splat(elem, &self.sizes, stride)?;
                let term = b.multiply(along, stride)?;
                sum = b.add(sum, term)?;
            }
        }
        Ok(sum)
    }
}

fn as_strided(c: &mut Call<'_>) -> Result<Outputs> {
    let meta = operand_meta(c)?;
    let target = Target::read(c, 1)?;
    if target.sizes.contains(&0) {
        return Ok(c.full(Number::Int(0), meta.dtype, &target.sizes)?.into());
    }
    let x = c.tensor(0)?;
    let value = c.value(&x, x.dtype)?;
    let order = memory_order(&meta.sizes, &meta.strides)?;
    let flat = to_storage(c.b, value, &order)?;
    let len = c.b.dims(flat)[0];
    target.check_inside(len)?;
    if let Ok(order) = memory_order(&target.sizes, &target.strides) {
        let covered: i64 = order.iter().map(|&dim| target.sizes[dim]).product();
        let part = c.b.slice(flat, &[target.offset], &[target.offset + covered], &[1])?;
        return Ok(from_storage(c.b, part, &target.sizes, &order)?.into());
    }
    let positions = target.positions(c.b, len)?;
    Ok(take(c.b, flat, 0, positions)?.into())
}

fn as_strided_scatter(c: &mut Call<'_>) -> Result<Outputs> {
    let meta = operand_meta(c)?;
    let target = Target::read(c, 2)?;
    let (x, source) = (c.tensor(0)?, c.tensor(1)?);
    let value = c.value(&x, x.dtype)?;
    if target.sizes.contains(&0) {
        return Ok(value.into());
    }
    let order = memory_order(&meta.sizes, &meta.strides)?;
    let flat = to_storage(c.b, value, &order)?;
    let len = c.b.dims(flat)[0];
    target.check_inside(len)?;
    let updates = c.broadcast(&source, x.dtype, &target.sizes)?;
    let positions = target.positions(c.b, len)?;
    let written = put(c.b, flat, 0, positions, updates, Combine::Replace)?;
    Ok(from_storage(c.b, written, &meta.sizes, &order)?.into())
}
