//! Distinct elements, and distinct slices along a dimension. NaN differs from everything, itself included.

use smallvec::{SmallVec, smallvec};
use stablehlo::{Direction, Value};

use crate::arguments::Arguments;
use crate::bounds::{Bounded, row_major};
use crate::call::{Call, Outputs, wrap_dim};
use crate::convert;
use crate::dtype::DType;
use crate::error::{CheckKind, LoweringError};
use crate::graph::{Dims, Number};
use crate::indices::{index_dtype, iota, take};
use crate::registry::OpDef;
use crate::scans::scan;
use crate::selection::chosen_first;
use crate::sorting::{less, sorted};
use crate::views::{move_dim, slice_dim};

type Result<T> = std::result::Result<T, LoweringError>;

pub const OPS: &[OpDef] = &[
    OpDef::new("aten::_unique", |c| elements(c, true)).bounded(|args| {
        let mut outputs = of_elements(args, Some(2), None)?;
        outputs.truncate(2);
        Ok(outputs)
    }),
    OpDef::new("aten::_unique2", |c| elements(c, true)).bounded(|args| of_elements(args, Some(2), Some(3))),
    OpDef::new("aten::unique_consecutive", consecutive).bounded(|args| {
        let rank = args.tensor(0)?.sizes.len();
        match args.opt_dim(3, rank)? {
            Some(dim) => of_slices(args, dim),
            None => of_elements(args, Some(1), Some(2)),
        }
    }),
    OpDef::new("aten::unique_dim", |c| slices(c, 1, true)).bounded(along_given_dim),
    OpDef::new("aten::unique_dim_consecutive", |c| slices(c, 1, false)).bounded(along_given_dim),
];

/// Values, inverse, counts; `inverse` and `counts` are the arguments that ask for them.
fn of_elements(args: &Arguments<'_>, inverse: Option<usize>, counts: Option<usize>) -> Result<Vec<Bounded>> {
    let x = args.tensor(0)?;
    let asked = |index: Option<usize>| index.map_or(Ok(false), |index| args.bool(index));
    let total = x.sizes.iter().product();
    let nothing = Bounded::fixed(DType::Int64, &[0]);
    Ok(vec![
        Bounded::rows(x.dtype, &[total]),
        if asked(inverse)? { Bounded::fixed(DType::Int64, &x.sizes) } else { nothing.clone() },
        if asked(counts)? { Bounded::rows(DType::Int64, &[total]) } else { nothing },
    ])
}

fn along_given_dim(args: &Arguments<'_>) -> Result<Vec<Bounded>> {
    let rank = args.tensor(0)?.sizes.len();
    of_slices(args, args.opt_dim(1, rank)?.unwrap_or(0))
}

/// Slices lie one after another in memory, inverse and counts come always.
fn of_slices(args: &Arguments<'_>, dim: usize) -> Result<Vec<Bounded>> {
    let x = args.tensor(0)?;
    if x.sizes.is_empty() {
        return Err(LoweringError::InvalidArgument {
            kind: CheckKind::Index,
            message: "Dimension specified as 0 but tensor has no dimensions".into(),
        });
    }
    let count = x.sizes[dim];
    if count == 0 {
        let nothing = Bounded::fixed(DType::Int64, &[0]);
        return Ok(vec![Bounded::fixed(x.dtype, &x.sizes), nothing.clone(), nothing]);
    }
    let mut front = x.sizes.clone();
    front.remove(dim);
    front.insert(0, count);
    let mut meta = row_major(x.dtype, &front);
    let stride = meta.strides.remove(0);
    meta.strides.insert(dim, stride);
    meta.sizes = x.sizes.clone();
    Ok(vec![
        Bounded { meta, dim: Some(dim) },
        Bounded::fixed(DType::Int64, &[count]),
        Bounded::rows(DType::Int64, &[count]),
    ])
}

fn consecutive(c: &mut Call<'_>) -> Result<Outputs> {
    if c.is_none(3) { elements(c, false) } else { slices(c, 3, false) }
}

/// Distinct elements, of all or of neighbours, as one row.
fn elements(c: &mut Call<'_>, ordered: bool) -> Result<Outputs> {
    let x = c.tensor(0)?;
    let n = x.numel();
    refuse_complex(x.dtype)?;
    if n == 0 {
        return nothing(c);
    }
    let value = c.value(&x, x.dtype)?;
    let value = c.b.reshape(value, &[n])?;
    let (value, order) = if ordered {
        let sorted = sorted(c, value, 0, false)?;
        (sorted.values, Some(sorted.indices))
    } else {
        (value, None)
    };
    let rows = c.b.reshape(value, &[n, 1])?;
    let groups = Groups::of(c, rows)?;
    let values = take(c.b, value, 0, groups.starts)?;
    groups.finish(c, values, order)
}

/// Distinct slices along the dimension in argument `dim`, of all or of neighbours.
fn slices(c: &mut Call<'_>, dim: usize, ordered: bool) -> Result<Outputs> {
    let x = c.tensor(0)?;
    let dim = wrap_dim(c.int(dim)?, x.rank())?;
    refuse_complex(x.dtype)?;
    let empty_dims = x.sizes.iter().filter(|&&size| size == 0).count();
    if x.sizes[dim] == 0 {
        return match empty_dims {
            1 => nothing(c),
            _ => Err(LoweringError::invalid(
                "Number of zero sized dimensions is more than one, so unique cannot be applied ",
            )),
        };
    }
    if empty_dims > 0 {
        return Err(LoweringError::invalid(
            "There are 0 sized dimensions, and they aren't selected, so unique cannot be applied",
        ));
    }
    let value = c.value(&x, x.dtype)?;
    let front = move_dim(c.b, value, dim, 0)?;
    let front_sizes = Dims::from_slice(c.b.dims(front));
    let n = front_sizes[0];
    let mut rows = c.b.reshape(front, &[n, x.numel() / n])?;
    let order = if ordered { Some(lexicographic_order(c, rows)?) } else { None };
    if let Some(order) = order {
        rows = take(c.b, rows, 0, order)?;
    }
    let groups = Groups::of(c, rows)?;
    let values = take(c.b, rows, 0, groups.starts)?;
    let values = c.b.reshape(values, &front_sizes)?;
    let values = move_dim(c.b, values, 0, dim)?;
    groups.finish(c, values, order)
}

fn refuse_complex(dtype: DType) -> Result<()> {
    if dtype.is_complex() || dtype.is_float8() {
        return Err(LoweringError::unsupported(format!("distinct elements of {dtype}")));
    }
    Ok(())
}

/// The outputs where there is no element.
fn nothing(c: &mut Call<'_>) -> Result<Outputs> {
    let metas: Vec<_> = c.output_metas().iter().flatten().cloned().collect();
    let zeros = metas.iter().map(|meta| c.full(Number::Int(0), meta.dtype, &meta.sizes).map(Some));
    Ok(Outputs(zeros.collect::<Result<SmallVec<_>>>()?))
}

/// The order of rows `[n, m]` by their first column, then their second, and so on. From the last column to the first,
/// each sort keeps the order that the ones before it made among equals: the program does not grow with m.
fn lexicographic_order(c: &mut Call<'_>, rows: Value) -> Result<Value> {
    let (n, m) = (c.b.dims(rows)[0], c.b.dims(rows)[1]);
    let rows =
        if c.b.elem(rows) == DType::Bool.element_type() { c.convert(rows, DType::UInt8)? } else { rows };
    let columns = c.b.transpose(rows, &[1, 0])?;
    let order = iota(c.b, index_dtype(n), &[n], 0)?;
    let last = c.full(Number::Int(m - 1), DType::Int32, &[])?;
    let zero = c.full(Number::Int(0), DType::Int32, &[])?;
    let one = c.full(Number::Int(1), DType::Int32, &[])?;
    let results = c.b.while_loop(
        &[last, order],
        |b, state| b.compare(state[0], zero, Direction::Ge),
        |b, state| {
            let column = b.dynamic_slice(columns, &[state[0], zero], &[1, n])?;
            let column = b.reshape(column, &[n])?;
            let keys = take(b, column, 0, state[1]).map_err(stablehlo::Error::body)?;
            let sorted = b.sort(&[keys, state[1]], 0, true, |b, args| less(b, args[0], args[1]))?;
            Ok(vec![b.subtract(state[0], one)?, sorted[1]])
        },
    )?;
    Ok(results[1])
}

/// Runs of equal rows.
struct Groups {
    /// Whether each row begins a run.
    begins: Value,
    /// Where each run begins; as many entries as there are rows.
    starts: Value,
    /// Of runs, 0-d int64.
    count: Value,
}

impl Groups {
    /// Of rows `[n, m]`, n > 0.
    fn of(c: &mut Call<'_>, rows: Value) -> Result<Self> {
        let n = c.b.dims(rows)[0];
        let (before, after) = (slice_dim(c.b, rows, 0, 0, n - 1, 1)?, slice_dim(c.b, rows, 0, 1, n, 1)?);
        let differs = c.b.compare(before, after, Direction::Ne)?;
        let differs = c.b.reduce_or(differs, &[1])?;
        let first = c.full(Number::Bool(true), DType::Bool, &[1])?;
        let begins = c.b.concatenate(&[first, differs], 0)?;
        let positions = iota(c.b, index_dtype(n), &[n], 0)?;
        let (starts, count) = chosen_first(c.b, begins, positions)?;
        Ok(Self { begins, starts, count })
    }

    /// The outputs; `order`: where each row came from, before it was sorted.
    fn finish(self, c: &mut Call<'_>, values: Value, order: Option<Value>) -> Result<Outputs> {
        let mut outputs: SmallVec<[Option<Value>; 2]> = smallvec![Some(values)];
        // The last one is the number of runs.
        for k in 1..c.outputs() - 1 {
            let out = c.out(k)?.clone();
            outputs.push(Some(match (out.sizes.contains(&0), k) {
                (true, _) => c.full(Number::Int(0), out.dtype, &out.sizes)?,
                (false, 1) => {
                    let inverse = self.inverse(c, order)?;
                    c.b.reshape(inverse, &out.sizes)?
                }
                _ => self.lengths(c)?,
            }));
        }
        outputs.push(Some(self.count));
        Ok(Outputs(outputs))
    }

    /// The run that each row is in, in the order before they were sorted.
    fn inverse(&self, c: &mut Call<'_>, order: Option<Value>) -> Result<Value> {
        let index = convert::dtype_of(c.b, self.starts)?;
        let begins = c.convert(self.begins, index)?;
        let [number] = scan(c.b, [begins], 0, &|b, [x], [y]| Ok([b.add(x, y)?]))?;
        let one = convert::splat(c.b, number, Number::Int(1))?;
        let mut number = c.b.subtract(number, one)?;
        if let Some(order) = order {
            let sorted =
                c.b.sort(&[order, number], 0, true, |b, args| b.compare(args[0], args[1], Direction::Lt))?;
            number = sorted[1];
        }
        c.convert(number, DType::Int64)
    }

    /// The length of each run.
    fn lengths(&self, c: &mut Call<'_>) -> Result<Value> {
        let index = convert::dtype_of(c.b, self.starts)?;
        let n = c.b.dims(self.starts)[0];
        let positions = iota(c.b, index, &[n], 0)?;
        let count = c.convert(self.count, index)?;
        let count = c.b.broadcast_scalar(count, &[n])?;
        let is_run = c.b.compare(positions, count, Direction::Lt)?;
        let end = convert::splat(c.b, positions, Number::Int(n))?;
        let starts = c.b.select(is_run, self.starts, end)?;
        let rest = slice_dim(c.b, starts, 0, 1, n, 1)?;
        let last = slice_dim(c.b, end, 0, 0, 1, 1)?;
        let next = c.b.concatenate(&[rest, last], 0)?;
        let lengths = c.b.subtract(next, starts)?;
        c.convert(lengths, DType::Int64)
    }
}
