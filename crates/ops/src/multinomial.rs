//! Samples of categories by their weights.

use stablehlo::{Direction, Value};

use crate::arguments::{Arguments, require};
use crate::call::{Call, Outputs};
use crate::convert;
use crate::dtype::DType;
use crate::error::{CheckKind, LoweringError};
use crate::graph::{Dims, Number};
use crate::indices::{any, index_dtype, iota};
use crate::philox;
use crate::registry::OpDef;
use crate::rng::standard_exponential;
use crate::scans::scan;
use crate::views::slice_dim;

type Result<T> = std::result::Result<T, LoweringError>;

pub const OPS: &[OpDef] = &[OpDef::new("aten::multinomial", multinomial).refuses(refuse)];

/// More categories than float32 can count.
const MOST_CATEGORIES: i64 = 1 << 24;

fn refuse(arguments: &Arguments<'_>) -> Result<()> {
    let (weights, samples) = (arguments.tensor(0)?, arguments.int(1)?);
    let say = |message: &'static str| move || message.to_owned();
    require(weights.dtype.is_float(), || {
        format!(
            "multinomial only supports floating-point dtypes for input, got: {}",
            weights.dtype.name_in_cpp()
        )
    })?;
    if let Some(out) = arguments.out.first() {
        require(out.dtype == DType::Int64, || {
            format!("multinomial expects Long tensor out, got: {}", out.dtype.name_in_cpp())
        })?;
    }
    require(samples > 0, say("cannot sample n_sample <= 0 samples"))?;
    require((1..=2).contains(&weights.sizes.len()), say("prob_dist must be 1 or 2 dim"))?;
    let categories = weights.sizes.last().copied().unwrap_or(0);
    let replaced = arguments.bool(2).unwrap_or(false);
    require(
        replaced || samples <= categories,
        say("cannot sample n_sample > prob_dist.size(-1) samples without replacement"),
    )?;
    require(categories <= MOST_CATEGORIES, say("number of categories cannot exceed 2^24"))
}

/// Without replacement: the largest of weight / exponential noise (the exponential race, as ATen does it). With
/// replacement: the category in whose part of the cumulative weights a uniform number falls.
fn multinomial(c: &mut Call<'_>) -> Result<Outputs> {
    let weights = c.tensor(0)?;
    let out = c.out(0)?.clone();
    let (samples, replacement) = (c.int(1)?, c.opt_bool(2)?.unwrap_or(false));
    let Some((&categories, lead)) = weights.sizes.split_last() else {
        return Err(LoweringError::invalid("prob_dist must be 1 or 2 dim"));
    };
    if out.sizes.contains(&0) {
        return Ok(c.full(Number::Int(0), out.dtype, &out.sizes)?.into());
    }
    if categories == 0 || samples < 1 || (!replacement && samples > categories) {
        return Err(LoweringError::invalid(
            "cannot sample n_sample > prob_dist.size(-1) samples without replacement",
        ));
    }
    let rows: i64 = lead.iter().product();
    let acc = weights.dtype.opmath();
    let value = c.value(&weights, acc)?;
    let value = c.b.reshape(value, &[rows, categories])?;
    check_weights(c, value, replacement && samples > 1)?;
    let chosen = if replacement { by_inversion(c, value, samples)? } else { by_race(c, value, samples)? };
    let chosen = c.b.reshape(chosen, &out.sizes)?;
    Ok(c.convert(chosen, out.dtype)?.into())
}

/// The kernel that draws several with replacement words it in its own way.
fn check_weights(c: &mut Call<'_>, weights: Value, several_with_replacement: bool) -> Result<()> {
    let zero = convert::splat(c.b, weights, Number::Int(0))?;
    let finite = c.b.is_finite(weights)?;
    let not_negative = c.b.compare(weights, zero, Direction::Ge)?;
    let kinds = if several_with_replacement {
        vec![
            (not_negative, "invalid multinomial distribution (encountering probability entry < 0)"),
            (finite, "invalid multinomial distribution (encountering probability entry = infinity or NaN)"),
        ]
    } else {
        let fine = c.b.and(finite, not_negative)?;
        vec![(fine, "probability tensor contains either `inf`, `nan` or element < 0")]
    };
    for (fine, message) in kinds {
        let wrong = c.b.not(fine)?;
        let wrong = any(c.b, wrong)?;
        c.check(wrong, CheckKind::Runtime, message);
    }
    let sums = c.b.reduce_add(weights, &[1])?;
    let zeros = convert::splat(c.b, sums, Number::Int(0))?;
    let empty = c.b.compare(sums, zeros, Direction::Le)?;
    let empty = any(c.b, empty)?;
    c.check(empty, CheckKind::Runtime, "invalid multinomial distribution (sum of probabilities <= 0)");
    Ok(())
}

fn by_race(c: &mut Call<'_>, weights: Value, samples: i64) -> Result<Value> {
    let sizes = Dims::from_slice(c.b.dims(weights));
    let dtype = convert::dtype_of(c.b, weights)?;
    let noise = standard_exponential(c, &sizes, dtype)?;
    let keys = c.b.divide(weights, noise)?;
    let positions = iota(c.b, index_dtype(sizes[1]), &sizes, 1)?;
    let sorted =
        c.b.sort(&[keys, positions], 1, true, |b, args| b.compare(args[0], args[1], Direction::Gt))?;
    slice_dim(c.b, sorted[1], 1, 0, samples, 1)
}

fn by_inversion(c: &mut Call<'_>, weights: Value, samples: i64) -> Result<Value> {
    let sizes = Dims::from_slice(c.b.dims(weights));
    let (rows, categories) = (sizes[0], sizes[1]);
    let dtype = convert::dtype_of(c.b, weights)?;
    let [cumulative] = scan(c.b, [weights], 1, &|b, [before], [own]| Ok([b.add(before, own)?]))?;
    let total = slice_dim(c.b, cumulative, 1, categories - 1, categories, 1)?;
    let total = c.b.broadcast_in_dim(total, &[rows, samples], &[0, 1])?;
    let unit = philox::unit(c, &[rows, samples], dtype)?;
    let at = c.b.multiply(unit, total)?;
    let all = [rows, samples, categories];
    let at = c.b.broadcast_in_dim(at, &all, &[0, 1])?;
    let cumulative = c.b.broadcast_in_dim(cumulative, &all, &[0, 2])?;
    let passed = c.b.compare(cumulative, at, Direction::Le)?;
    let passed = c.convert(passed, DType::Int32)?;
    let chosen = c.b.reduce_add(passed, &[2])?;
    // Rounding may put the number at the very end: the last category with a weight takes it.
    let zero = convert::splat(c.b, weights, Number::Int(0))?;
    let possible = c.b.compare(weights, zero, Direction::Gt)?;
    let positions = iota(c.b, DType::Int32, &sizes, 1)?;
    let none = convert::splat(c.b, positions, Number::Int(0))?;
    let candidates = c.b.select(possible, positions, none)?;
    let last = c.b.reduce_max(candidates, &[1])?;
    let last = c.b.broadcast_in_dim(last, &[rows, samples], &[0])?;
    Ok(c.b.minimum(chosen, last)?)
}
