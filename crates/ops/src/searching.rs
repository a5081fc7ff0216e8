//! searchsorted and bucketize as ATen's binary search, isin as a comparison of all pairs.

use stablehlo::{Direction, Value};

use crate::arguments::{Arguments, require};
use crate::call::{Call, Outputs, Tensor};
use crate::convert;
use crate::error::LoweringError;
use crate::graph::{Dims, Number};
use crate::indices::{Negative, gather_along, in_range, index_dtype};
use crate::registry::OpDef;

type Result<T> = std::result::Result<T, LoweringError>;

pub const OPS: &[OpDef] = &[
    OpDef::new("aten::searchsorted.Tensor", searchsorted),
    OpDef::new("aten::searchsorted.Scalar", searchsorted),
    OpDef::new("aten::bucketize.Tensor", bucketize).refuses(refuse_boundaries),
    OpDef::new("aten::bucketize.Scalar", bucketize).refuses(refuse_boundaries),
    OpDef::new("aten::isin.Tensor_Tensor", isin),
    OpDef::new("aten::isin.Tensor_Scalar", isin),
    OpDef::new("aten::isin.Scalar_Tensor", isin),
];

fn searchsorted(c: &mut Call<'_>) -> Result<Outputs> {
    let (boundaries, values) = (c.tensor(0)?, c.tensor(1)?);
    let right = match c.opt_str(4)? {
        Some(side) => side == "right",
        None => c.opt_bool(3)?.unwrap_or(false),
    };
    let sorter = c.opt_tensor(5)?;
    search(c, &boundaries, &values, right, sorter.as_ref())
}

fn refuse_boundaries(arguments: &Arguments<'_>) -> Result<()> {
    let rank = arguments.tensor(1)?.sizes.len();
    require(rank == 1, || format!("boundaries tensor must be 1 dimension, but got dim({rank})"))
}

fn bucketize(c: &mut Call<'_>) -> Result<Outputs> {
    let (values, boundaries) = (c.tensor(0)?, c.tensor(1)?);
    let right = c.opt_bool(3)?.unwrap_or(false);
    search(c, &boundaries, &values, right, None)
}

/// The number of boundaries below each value (or not above it, with `right`), found by halving, so that NaN and
/// unsorted boundaries give what the CPU's search gives.
fn search(
    c: &mut Call<'_>,
    boundaries: &Tensor,
    values: &Tensor,
    right: bool,
    sorter: Option<&Tensor>,
) -> Result<Outputs> {
    let out = c.out(0)?.clone();
    let Some((&n, lead)) = boundaries.sizes.split_last() else {
        return Err(LoweringError::invalid("torch.searchsorted(): the boundaries must have a dimension"));
    };
    if n == 0 || values.numel() == 0 {
        return Ok(c.full(Number::Int(0), out.dtype, &out.sizes)?.into());
    }
    let dtype = if values.wrapped { boundaries.dtype } else { c.result_type(&[boundaries, values])? };
    // Rows of boundaries, and the values that are looked up in each.
    let rows: i64 = lead.iter().product();
    let per_row = values.numel() / rows;
    let table = c.value(boundaries, dtype)?;
    let mut table = c.b.reshape(table, &[rows, n])?;
    if let Some(sorter) = sorter {
        let order = in_range(c, sorter, n, Negative::Refused, None)?;
        let order = c.b.reshape(order, &[rows, n])?;
        table = gather_along(c.b, table, 1, order)?;
    }
    let wanted = c.value(values, dtype)?;
    let wanted = c.b.reshape(wanted, &[rows, per_row])?;
    let index = index_dtype(n);
    let sizes = [rows, per_row];
    let mut start = c.full(Number::Int(0), index, &sizes)?;
    let mut end = c.full(Number::Int(n), index, &sizes)?;
    let (one, two) = (c.full(Number::Int(1), index, &sizes)?, c.full(Number::Int(2), index, &sizes)?);
    let direction = if right { Direction::Gt } else { Direction::Ge };
    // Each step halves a range of at most n elements.
    for _ in 0..64 - (n as u64).leading_zeros() {
        let length = c.b.subtract(end, start)?;
        let half = c.b.divide(length, two)?;
        let middle = c.b.add(start, half)?;
        // A finished search may point past the end; the gather clamps and the result is not used.
        let element = gather_along(c.b, table, 1, middle)?;
        let found = c.b.compare(element, wanted, direction)?;
        let active = c.b.compare(start, end, Direction::Lt)?;
        let missed = c.b.not(found)?;
        let (up, down) = (c.b.and(active, missed)?, c.b.and(active, found)?);
        let above = c.b.add(middle, one)?;
        start = c.b.select(up, above, start)?;
        end = c.b.select(down, middle, end)?;
    }
    let result = c.b.reshape(start, &out.sizes)?;
    Ok(c.convert(result, out.dtype)?.into())
}

fn isin(c: &mut Call<'_>) -> Result<Outputs> {
    let (elements, tests) = (c.tensor(0)?, c.tensor(1)?);
    let out = c.out(0)?.clone();
    let dtype = c.result_type(&[&elements, &tests])?;
    let count = tests.numel();
    let own = c.value(&elements, dtype)?;
    let own = convert::broadcast_to(c.b, own, &out.sizes)?;
    let wanted = c.value(&tests, dtype)?;
    let wanted = c.b.reshape(wanted, &[count])?;
    let mut pairs = out.sizes.clone();
    pairs.push(count);
    let last = out.sizes.len() as i64;
    let along: Dims = (0..last).collect();
    let own = c.b.broadcast_in_dim(own, &pairs, &along)?;
    let wanted = c.b.broadcast_in_dim(wanted, &pairs, &[last])?;
    let equal = c.b.compare(own, wanted, Direction::Eq)?;
    let any: Value = c.b.reduce_or(equal, &[last])?;
    let any = if c.opt_bool(3)?.unwrap_or(false) { c.b.not(any)? } else { any };
    Ok(any.into())
}
