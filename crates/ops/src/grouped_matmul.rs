//! `_grouped_mm`: products of matrices whose rows, or summed rows, fall into groups that are known at run time only.
//!
//! A loop visits each tile of rows that a group touches, so that the work is that of the rows plus one tile per group,
//! whatever the number of groups. `chlo.ragged_dot` says the same in one operation, but XLA does not compile it for CPU,
//! and for v6e multiplies every row with every matrix (8.6 Gflop instead of 1.1 for 1,024 rows in 8 groups).

use stablehlo::{Builder, DotDimensionNumbers, Value};

use crate::call::{Call, Outputs, Tensor};
use crate::convert;
use crate::dtype::DType;
use crate::error::LoweringError;
use crate::formula::{formula, formulas};
use crate::graph::Number;
use crate::indices::iota;
use crate::matmul::{BATCHES, contract, precision};
use crate::registry::OpDef;
use crate::scans::scan;

type Result<T> = std::result::Result<T, LoweringError>;

pub const OPS: &[OpDef] = &[OpDef::new("aten::_grouped_mm", grouped_mm)];

/// Rows per step: the height of a TPU's matrix unit.
const TILE: i64 = 128;

/// aten::_grouped_mm(self, mat2, offs, bias, out_dtype); group g is from `offs[g - 1]` to `offs[g]`.
fn grouped_mm(c: &mut Call<'_>) -> Result<Outputs> {
    let (x, y, offsets) = (c.tensor(0)?, c.tensor(1)?, c.opt_tensor(2)?);
    let out = c.out(0)?.clone();
    if x.dtype != y.dtype {
        let message =
            format!("Expected mat_a and mat_b to have the same dtype, got {} and {}", x.dtype, y.dtype);
        return Err(LoweringError::invalid(message));
    }
    let (lhs, rhs) = (c.value(&x, x.dtype)?, c.value(&y, y.dtype)?);
    let dtype = out.dtype.opmath();
    let value = match (&offsets, x.rank(), y.rank()) {
        (None, 3, 3) => contract(c, lhs, rhs, &BATCHES, dtype)?,
        (Some(offsets), 2, 3) => by_group(c, lhs, rhs, offsets, dtype)?,
        (Some(offsets), 3, 2) => {
            let columns = c.b.transpose(rhs, &[1, 0])?;
            let matrices = c.b.transpose(lhs, &[0, 2, 1])?;
            let product = by_group(c, columns, matrices, offsets, dtype)?;
            c.b.transpose(product, &[1, 0])?
        }
        (Some(offsets), 2, 2) => {
            let rows = c.b.transpose(lhs, &[1, 0])?;
            within_groups(c, rows, rhs, offsets, dtype)?
        }
        _ => return Err(LoweringError::unsupported("grouped matrix product of these ranks")),
    };
    Ok(c.convert(value, out.dtype)?.into())
}

/// Row r of `[rows, k]` times the matrix of its group in `[groups, k, n]`. Rows of no group give zeros.
fn by_group(c: &mut Call<'_>, rows: Value, matrices: Value, offsets: &Tensor, out: DType) -> Result<Value> {
    let (k, n) = (c.b.dims(matrices)[1], c.b.dims(matrices)[2]);
    let count = c.b.dims(rows)[0];
    let Some(groups) = Groups::new(c, count, offsets)? else {
        return c.full(Number::Int(0), out, &[count, n]);
    };
    let rows = groups.pad(c.b, rows)?;
    let product = c.full(Number::Int(0), out, &[groups.padded, n])?;
    let precision = precision(c, convert::dtype_of(c.b, rows)?);
    let dims = DotDimensionNumbers::new(&[], &[], &[1], &[0]);
    let product = groups.visit(c.b, product, |b, step, product| {
        let zero = b.constant_i64(DType::Int32.element_type(), 0)?;
        let tile = b.dynamic_slice(rows, &[step.row, zero], &[groups.tile, k])?;
        let matrix = b.dynamic_slice(matrices, &[step.group, zero, zero], &[1, k, n])?;
        let matrix = b.reshape(matrix, &[k, n])?;
        let new = b.dot_general(tile, matrix, &dims, precision, out.element_type())?;
        let old = b.dynamic_slice(product, &[step.row, zero], &[groups.tile, n])?;
        let own = b.broadcast_in_dim(step.own, &[groups.tile, n], &[0])?;
        let merged = b.select(own, new, old)?;
        Ok(b.dynamic_update_slice(product, merged, &[step.row, zero])?)
    })?;
    Ok(c.b.slice(product, &[0, 0], &[count, n], &[1, 1])?)
}

/// The sum over the rows of each group of the outer products of `[rows, m]` and `[rows, n]`: `[groups, m, n]`.
fn within_groups(c: &mut Call<'_>, left: Value, right: Value, offsets: &Tensor, out: DType) -> Result<Value> {
    let (count, m, n) = (c.b.dims(left)[0], c.b.dims(left)[1], c.b.dims(right)[1]);
    let sums = c.full(Number::Int(0), out, &[offsets.numel(), m, n])?;
    let Some(groups) = Groups::new(c, count, offsets)? else { return Ok(sums) };
    let (left, right) = (groups.pad(c.b, left)?, groups.pad(c.b, right)?);
    let precision = precision(c, convert::dtype_of(c.b, left)?);
    let dims = DotDimensionNumbers::new(&[], &[], &[0], &[0]);
    groups.visit(c.b, sums, |b, step, sums| {
        let zero = b.constant_i64(DType::Int32.element_type(), 0)?;
        let own_rows = |b: &mut Builder, all: Value, width: i64| -> Result<Value> {
            let tile = b.dynamic_slice(all, &[step.row, zero], &[groups.tile, width])?;
            let own = b.broadcast_in_dim(step.own, &[groups.tile, width], &[0])?;
            let zeros = convert::splat(b, tile, Number::Int(0))?;
            Ok(b.select(own, tile, zeros)?)
        };
        let (left, right) = (own_rows(b, left, m)?, own_rows(b, right, n)?);
        let more = b.dot_general(left, right, &dims, precision, out.element_type())?;
        let more = b.reshape(more, &[1, m, n])?;
        let sum = b.dynamic_slice(sums, &[step.group, zero, zero], &[1, m, n])?;
        let sum = b.add(sum, more)?;
        Ok(b.dynamic_update_slice(sums, sum, &[step.group, zero, zero])?)
    })
}

/// Where the groups lie, all `[groups]` of s32.
struct Groups {
    starts: Value,
    ends: Value,
    first_tiles: Value,
    /// How many tiles the groups before this one touch, and those with this one.
    tiles_before: Value,
    tiles_so_far: Value,
    tile: i64,
    /// Rows up to the end of the last tile.
    padded: i64,
    count: i64,
}

/// One tile of one group.
struct Step {
    group: Value,
    /// First row of the tile.
    row: Value,
    /// `[tile]`: which rows are the group's.
    own: Value,
}

impl Groups {
    /// `None` when there is nothing to multiply. Offsets count from the end when negative and are clamped, as those of
    /// a slice.
    fn new(c: &mut Call<'_>, rows: i64, offsets: &Tensor) -> Result<Option<Self>> {
        let count = offsets.numel();
        if rows == 0 || count == 0 {
            return Ok(None);
        }
        let (tile, limit) = (rows.min(TILE), rows);
        let ends = c.value(offsets, DType::Int32)?;
        let zero = c.b.zero(DType::Int32.element_type())?;
        let starts = c.b.pad(ends, zero, &[1], &[-1], &[0])?;
        let [starts, ends] = formulas(c.b, [starts, ends], |values| {
            values.map(|at| {
                let at = at.lt(at.splat_int(0)).select(at + at.splat_int(limit), at);
                at.max(at.splat_int(0)).min(at.splat_int(limit))
            })
        })?;
        let [first_tiles, tiles] = formulas(c.b, [starts, ends], |[start, end]| {
            let size = start.splat_int(tile);
            let first = start / size;
            let past = (end + start.splat_int(tile - 1)) / size;
            [first, end.gt(start).select(past - first, start.splat_int(0))]
        })?;
        let [tiles_so_far] = scan(c.b, [tiles], 0, &|b, [x], [y]| Ok([b.add(x, y)?]))?;
        let tiles_before = c.b.subtract(tiles_so_far, tiles)?;
        let padded = (rows + tile - 1) / tile * tile;
        Ok(Some(Self { starts, ends, first_tiles, tiles_before, tiles_so_far, tile, padded, count }))
    }

    fn pad(&self, b: &mut Builder, rows: Value) -> Result<Value> {
        let missing = self.padded - b.dims(rows)[0];
        let zero = b.zero(b.elem(rows))?;
        Ok(b.pad(rows, zero, &[0, 0], &[missing, 0], &[0, 0])?)
    }

    /// Lets `body` update `state` for each tile of each group, in order.
    fn visit(
        &self,
        b: &mut Builder,
        state: Value,
        body: impl FnOnce(&mut Builder, &Step, Value) -> Result<Value>,
    ) -> Result<Value> {
        let s32 = DType::Int32.element_type();
        let total = b.slice(self.tiles_so_far, &[self.count - 1], &[self.count], &[1])?;
        let total = b.reshape(total, &[])?;
        let first = b.zero(s32)?;
        let results = b.while_loop(
            &[first, state],
            |b, state| b.compare(state[0], total, stablehlo::Direction::Lt),
            |b, state| {
                let step = self.step(b, state[0]).map_err(stablehlo::Error::body)?;
                let new = body(b, &step, state[1]).map_err(stablehlo::Error::body)?;
                let one = b.one(s32)?;
                Ok(vec![b.add(state[0], one)?, new])
            },
        )?;
        Ok(results[1])
    }

    fn step(&self, b: &mut Builder, number: Value) -> Result<Step> {
        let s32 = DType::Int32.element_type();
        let wanted = b.broadcast_scalar(number, &[self.count])?;
        let done = formula(b, [self.tiles_so_far, wanted], |[so_far, wanted]| so_far.le(wanted))?;
        let done = b.convert(done, s32)?;
        let group = b.reduce_add(done, &[0])?;
        let of_group = |b: &mut Builder, values: Value| -> Result<Value> {
            let value = b.dynamic_slice(values, &[group], &[1])?;
            Ok(b.reshape(value, &[])?)
        };
        let (start, end) = (of_group(b, self.starts)?, of_group(b, self.ends)?);
        let (first, before) = (of_group(b, self.first_tiles)?, of_group(b, self.tiles_before)?);
        let row = formula(b, [number, first, before], |[number, first, before]| {
            (first + number - before) * number.splat_int(self.tile)
        })?;
        let in_tile = iota(b, DType::Int32, &[self.tile], 0)?;
        let [first, start, end] = [row, start, end].map(|value| b.broadcast_scalar(value, &[self.tile]));
        let own = formula(b, [in_tile, first?, start?, end?], |[i, first, start, end]| {
            (first + i).ge(start) & (first + i).lt(end)
        })?;
        Ok(Step { group, row, own })
    }
}
