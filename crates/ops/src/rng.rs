//! Random operators. The stream and its mapping to elements are in `philox.rs`.

use stablehlo::{Direction, Value};

use crate::call::{Call, Outputs, Tensor};
use crate::convert;
use crate::dtype::{Category, DType};
use crate::error::{CheckKind, LoweringError};
use crate::formula::formula;
use crate::graph::{Dims, Number, TensorMeta};
use crate::indices::{any, index_dtype};
use crate::philox;
use crate::registry::OpDef;

type Result<T> = std::result::Result<T, LoweringError>;

pub const OPS: &[OpDef] = &[
    OpDef::new("aten::uniform", |c| uniform(c, 1, 2)),
    OpDef::new("aten::rand", |c| uniform(c, NONE, NONE)).composite(),
    OpDef::new("aten::rand.generator", |c| uniform(c, NONE, NONE)).composite(),
    OpDef::new("aten::rand_like", |c| uniform(c, NONE, NONE)).composite(),
    OpDef::new("prims::uniform", |c| uniform(c, 1, 2)).composite(),
    OpDef::new("aten::normal_functional", |c| normal(c, 1, 2)),
    OpDef::new("aten::normal.float_float", |c| normal(c, 0, 1)),
    OpDef::new("aten::normal.Tensor_float", |c| normal(c, 0, 1)),
    OpDef::new("aten::normal.float_Tensor", |c| normal(c, 0, 1)),
    OpDef::new("aten::normal.Tensor_Tensor", |c| normal(c, 0, 1)),
    OpDef::new("aten::randn", |c| normal(c, NONE, NONE)).composite(),
    OpDef::new("aten::randn.generator", |c| normal(c, NONE, NONE)).composite(),
    OpDef::new("aten::randn_like", |c| normal(c, NONE, NONE)).composite(),
    OpDef::new("prims::normal", |c| normal(c, 1, 2)).composite(),
    OpDef::new("aten::log_normal", log_normal),
    OpDef::new("aten::cauchy", cauchy),
    OpDef::new("aten::exponential", exponential),
    OpDef::new("aten::geometric", geometric),
    OpDef::new("aten::random", random),
    OpDef::new("aten::random.to", |c| random_between(c, NONE, 1)),
    OpDef::new("aten::random.from", |c| random_between(c, 1, 2)),
    OpDef::new("aten::randint", |c| random_between(c, NONE, 0)).composite(),
    OpDef::new("aten::randint.generator", |c| random_between(c, NONE, 0)).composite(),
    OpDef::new("aten::randint.low", |c| random_between(c, 0, 1)).composite(),
    OpDef::new("aten::randint.low_generator", |c| random_between(c, 0, 1)).composite(),
    OpDef::new("aten::randint_like", |c| random_between(c, NONE, 1)).composite(),
    OpDef::new("aten::randint_like.low_dtype", |c| random_between(c, 1, 2)).composite(),
    OpDef::new("aten::bernoulli", |c| {
        let p = c.tensor(0)?;
        bernoulli_of(c, &p)
    }),
    OpDef::new("aten::bernoulli.Tensor", |c| {
        let p = c.tensor(1)?;
        bernoulli_of(c, &p)
    }),
    OpDef::new("aten::bernoulli.p", bernoulli),
    OpDef::new("aten::native_dropout", native_dropout),
    OpDef::new("aten::native_dropout_backward", native_dropout_backward),
    OpDef::new("aten::rrelu_with_noise_functional", rrelu_with_noise),
    OpDef::new("aten::randperm", randperm),
    OpDef::new("aten::randperm.generator", randperm),
];

/// The position of an argument that the operator does not have.
const NONE: usize = usize::MAX;

/// A real number argument, known when the program is built or not; `default` if the operator has none.
fn parameter(c: &mut Call<'_>, index: usize, default: f64, dtype: DType) -> Result<Value> {
    if c.is_none(index) {
        convert::constant(c.b, Number::Float(default), dtype)
    } else {
        c.scalar(index, dtype)
    }
}

/// The value of a number argument where it is known.
fn known(c: &Call<'_>, index: usize) -> Option<f64> {
    c.float(index).ok()
}

/// `x * scale + shift` with 0-d scale and shift, in the output's dtype.
fn scale_and_shift(c: &mut Call<'_>, x: Value, scale: Value, shift: Value, dtype: DType) -> Result<Value> {
    let dims = Dims::from_slice(c.b.dims(x));
    let (scale, shift) = (c.b.broadcast_scalar(scale, &dims)?, c.b.broadcast_scalar(shift, &dims)?);
    let scaled = c.b.multiply(x, scale)?;
    let shifted = c.b.add(scaled, shift)?;
    c.convert(shifted, dtype)
}

/// Real numbers for an output: a complex one takes two for each element.
fn real_parts(out: &TensorMeta) -> (DType, Dims) {
    let mut sizes = out.sizes.clone();
    if out.dtype.is_complex() {
        sizes.push(2);
    }
    (out.dtype.real(), sizes)
}

fn join_parts(c: &mut Call<'_>, parts: Value, out: &TensorMeta) -> Result<Value> {
    if out.dtype.is_complex() { crate::complex::from_pairs(c.b, parts) } else { Ok(parts) }
}

fn require_float(c: &Call<'_>, out: &TensorMeta) -> Result<()> {
    if out.dtype.is_float() || out.dtype.is_complex() {
        return Ok(());
    }
    Err(LoweringError::unsupported(format!("{} for {}", c.op(), out.dtype)))
}

fn uniform(c: &mut Call<'_>, from: usize, to: usize) -> Result<Outputs> {
    let out = c.out(0)?.clone();
    require_float(c, &out)?;
    if let (Some(from), Some(to)) = (known(c, from), known(c, to))
        && from > to
    {
        return Err(LoweringError::invalid(format!(
            "uniform_ expects to return a [from, to) range, but found from={from} > to={to}"
        )));
    }
    let (real, sizes) = real_parts(&out);
    let unit = philox::unit(c, &sizes, real)?;
    // CPU kernels round the bounds to the tensor's dtype first.
    let (from, to) = (parameter(c, from, 0.0, real)?, parameter(c, to, 1.0, real)?);
    let (from, to) = (c.convert(from, real.opmath())?, c.convert(to, real.opmath())?);
    let length = c.b.subtract(to, from)?;
    let value = scale_and_shift(c, unit, length, from, real)?;
    Ok(join_parts(c, value, &out)?.into())
}

/// `std` times standard normal numbers plus `mean`, which may be tensors.
fn normal(c: &mut Call<'_>, mean: usize, std: usize) -> Result<Outputs> {
    let out = c.out(0)?.clone();
    require_float(c, &out)?;
    if let Some(value) = known(c, std)
        && value < 0.0
    {
        return Err(LoweringError::invalid(format!("normal expects std >= 0.0, but found std {value}")));
    }
    let (real, sizes) = real_parts(&out);
    let acc = real.opmath();
    let mut value = philox::normal(c, &sizes, real)?;
    if out.dtype.is_complex() {
        // The variance is that of both parts together.
        let half = convert::splat(c.b, value, Number::Float(std::f64::consts::FRAC_1_SQRT_2))?;
        value = c.b.multiply(value, half)?;
        value = join_parts(c, value, &out)?;
    }
    let acc = if out.dtype.is_complex() { out.dtype } else { acc };
    if !c.is_none(std) {
        let tensor = c.tensor(std)?;
        if !tensor.is_host() && tensor.numel() > 0 && !out.dtype.is_complex() {
            check_std(c, &tensor)?;
        }
        let std = c.broadcast(&tensor, acc, &out.sizes)?;
        value = c.b.multiply(value, std)?;
    }
    if !c.is_none(mean) {
        let tensor = c.tensor(mean)?;
        let mut mean = c.broadcast(&tensor, acc, &out.sizes)?;
        if out.dtype.is_complex() && tensor.is_host() && c.tensor(std)?.is_host() {
            // PyTorch draws the parts as real numbers: each has the mean.
            let real = c.b.real(mean)?;
            mean = c.b.complex(real, real)?;
        }
        value = c.b.add(value, mean)?;
    }
    Ok(c.convert(value, out.dtype)?.into())
}

fn check_std(c: &mut Call<'_>, std: &Tensor) -> Result<()> {
    let value = c.value(std, std.dtype)?;
    let zero = convert::splat(c.b, value, Number::Int(0))?;
    let negative = c.b.compare(value, zero, Direction::Lt)?;
    let negative = any(c.b, negative)?;
    c.check(negative, CheckKind::Runtime, "normal expects all elements of std >= 0.0");
    Ok(())
}

fn log_normal(c: &mut Call<'_>) -> Result<Outputs> {
    let out = c.out(0)?.clone();
    require_float(c, &out)?;
    let acc = out.dtype.opmath();
    let value = philox::normal(c, &out.sizes, out.dtype)?;
    let (mean, std) = (parameter(c, 1, 1.0, acc)?, parameter(c, 2, 2.0, acc)?);
    let value = scale_and_shift(c, value, std, mean, acc)?;
    let value = c.b.exponential(value)?;
    Ok(c.convert(value, out.dtype)?.into())
}

/// The quantile at a uniform number, which is kept off the poles.
fn cauchy(c: &mut Call<'_>) -> Result<Outputs> {
    let out = c.out(0)?.clone();
    require_float(c, &out)?;
    let acc = out.dtype.opmath();
    let unit = philox::unit_above_zero(c, &out.sizes, out.dtype)?;
    let epsilon = epsilon(acc);
    let value = formula(c.b, [unit], |[u]| {
        let u = u.max(u.splat(epsilon)).min(u.splat(1.0 - epsilon));
        ((u - 0.5) * std::f64::consts::PI).tan()
    })?;
    let (median, sigma) = (parameter(c, 1, 0.0, acc)?, parameter(c, 2, 1.0, acc)?);
    Ok(scale_and_shift(c, value, sigma, median, out.dtype)?.into())
}

fn epsilon(dtype: DType) -> f64 {
    if dtype == DType::Float64 { f64::EPSILON } else { f64::from(f32::EPSILON) }
}

/// Minus the logarithm of a uniform number, never 0 (as on CUDA: multinomial divides by it).
pub fn standard_exponential(c: &mut Call<'_>, sizes: &[i64], dtype: DType) -> Result<Value> {
    let unit = philox::unit_above_zero(c, sizes, dtype)?;
    let least = epsilon(dtype.opmath()) / 2.0;
    formula(c.b, [unit], |[u]| {
        let value = -u.log();
        value.max(value.splat(least))
    })
}

fn exponential(c: &mut Call<'_>) -> Result<Outputs> {
    let out = c.out(0)?.clone();
    require_float(c, &out)?;
    if let Some(lambda) = known(c, 1)
        && (lambda <= 0.0 || lambda.is_nan())
    {
        return Err(LoweringError::invalid(format!(
            "exponential_ expects lambda > 0.0, but found lambda={lambda}"
        )));
    }
    let acc = out.dtype.opmath();
    let value = standard_exponential(c, &out.sizes, out.dtype)?;
    let lambda = parameter(c, 1, 1.0, acc)?;
    let lambda = c.b.broadcast_scalar(lambda, &out.sizes)?;
    let value = c.b.divide(value, lambda)?;
    Ok(c.convert(value, out.dtype)?.into())
}

/// Trials up to the first success, from 1.
fn geometric(c: &mut Call<'_>) -> Result<Outputs> {
    let out = c.out(0)?.clone();
    if let Some(p) = known(c, 1)
        && !(p > 0.0 && p < 1.0)
    {
        return Err(LoweringError::invalid(format!("geometric_ expects p to be in (0, 1), but got p={p}")));
    }
    let dtype = if out.dtype.is_float() { out.dtype.opmath() } else { DType::Float64 };
    let value = standard_exponential(c, &out.sizes, dtype)?;
    let p = parameter(c, 1, 0.5, dtype)?;
    let p = c.b.broadcast_scalar(p, &out.sizes)?;
    let value = formula(c.b, [value, p], |[value, p]| {
        let trials = (value / -(-p).log1p()).ceil();
        trials.max(trials.splat(1.0))
    })?;
    Ok(c.convert(value, out.dtype)?.into())
}

/// Integers `from <= x < to` by the remainder of a random word, of two if the range needs more than 32 bits.
fn random_between(c: &mut Call<'_>, from: usize, to: usize) -> Result<Outputs> {
    let out = c.out(0)?.clone();
    let low = if from == NONE { 0 } else { c.int(from)? };
    check_bound("from", i128::from(low), out.dtype)?;
    let range = match c.opt_int(to)? {
        Some(high) => {
            if low >= high {
                return Err(LoweringError::invalid(format!(
                    "random_ expects 'from' to be less than 'to', but got from={low} >= to={high}"
                )));
            }
            check_bound("to - 1", i128::from(high) - 1, out.dtype)?;
            i128::from(high) - i128::from(low)
        }
        None => largest_random(out.dtype) - i128::from(low) + 1,
    };
    let value = below(c, &out.sizes, range)?;
    let low = c.full(Number::Int(low), DType::Int64, &out.sizes)?;
    let value = c.b.add(value, low)?;
    Ok(c.convert(value, out.dtype)?.into())
}

/// Refuses a bound that the type cannot hold.
fn check_bound(name: &str, bound: i128, dtype: DType) -> Result<()> {
    let holds = match dtype.category() {
        Category::Int if !dtype.is_unsigned() => {
            (-largest_random(dtype) - 1..=largest_random(dtype)).contains(&bound)
        }
        Category::Int | Category::Bool => (0..=largest_random(dtype)).contains(&bound),
        // The other floating types hold every int64.
        Category::Float | Category::Complex => dtype != DType::Float16 || bound.abs() <= 65504,
    };
    if holds { Ok(()) } else { Err(LoweringError::invalid(format!("{name} is out of bounds for {dtype}"))) }
}

/// The largest value of `random_` without bounds: 2^digits for floats, the type's own for integers.
fn largest_random(dtype: DType) -> i128 {
    match dtype.category() {
        Category::Bool => 1,
        Category::Float | Category::Complex => 1 << philox::digits(dtype),
        Category::Int => {
            let bits = 8 * dtype.size() as u32 - u32::from(!dtype.is_unsigned());
            (1 << bits) - 1
        }
    }
}

/// Random integers in [0, range) as int64; a range of 2^64 fills it.
fn below(c: &mut Call<'_>, sizes: &[i64], range: i128) -> Result<Value> {
    let wide = range >= 1 << 32;
    let bits = philox::integers(c, sizes, wide)?;
    let rest = if range >= 1 << 64 {
        bits
    } else {
        let divisor = c.b.splat(c.b.elem(bits), sizes, range as u64)?;
        c.b.remainder(bits, divisor)?
    };
    Ok(c.b.convert(rest, DType::Int64.element_type())?)
}

fn random(c: &mut Call<'_>) -> Result<Outputs> {
    let out = c.out(0)?.clone();
    let value = below(c, &out.sizes, largest_random(out.dtype) + 1)?;
    Ok(c.convert(value, out.dtype)?.into())
}

/// True with probability `p` (0-d, f32).
fn trial(c: &mut Call<'_>, sizes: &[i64], p: Value) -> Result<Value> {
    let unit = philox::unit(c, sizes, DType::Float32)?;
    let p = convert::broadcast_to(c.b, p, sizes)?;
    Ok(c.b.compare(unit, p, Direction::Lt)?)
}

fn bernoulli(c: &mut Call<'_>) -> Result<Outputs> {
    let out = c.out(0)?.clone();
    if let Some(p) = known(c, 1)
        && !(0.0..=1.0).contains(&p)
    {
        return Err(LoweringError::invalid(format!("bernoulli_ expects p to be in [0, 1], but got p={p}")));
    }
    let p = parameter(c, 1, 0.5, DType::Float32)?;
    let value = trial(c, &out.sizes, p)?;
    Ok(c.convert(value, out.dtype)?.into())
}

fn bernoulli_of(c: &mut Call<'_>, p: &Tensor) -> Result<Outputs> {
    let out = c.out(0)?.clone();
    let p = c.broadcast(p, DType::Float32, &out.sizes)?;
    if !out.sizes.contains(&0) {
        let zero = convert::splat(c.b, p, Number::Int(0))?;
        let one = convert::splat(c.b, p, Number::Int(1))?;
        let (above, below) = (c.b.compare(p, zero, Direction::Ge)?, c.b.compare(p, one, Direction::Le)?);
        let inside = c.b.and(above, below)?;
        let outside = c.b.not(inside)?;
        let flag = any(c.b, outside)?;
        c.check(flag, CheckKind::Runtime, "Expected p_in >= 0 && p_in <= 1 to be true, but got false.");
    }
    let value = trial(c, &out.sizes, p)?;
    Ok(c.convert(value, out.dtype)?.into())
}

/// (input * mask / (1 - p), mask)
fn native_dropout(c: &mut Call<'_>) -> Result<Outputs> {
    let x = c.tensor(0)?;
    let value = c.value(&x, x.dtype)?;
    if !c.opt_bool(2)?.unwrap_or(true) || x.numel() == 0 {
        let kept = c.full(Number::Bool(true), DType::Bool, &x.sizes)?;
        return Ok([value, kept].into());
    }
    let p = c.float(1)?;
    if !(0.0..=1.0).contains(&p) {
        return Err(LoweringError::invalid(format!(
            "dropout probability has to be between 0 and 1, but got {p}"
        )));
    }
    let keep = convert::constant(c.b, Number::Float(1.0 - p), DType::Float32)?;
    let mask = trial(c, &x.sizes, keep)?;
    let scale = if p == 1.0 { 0.0 } else { 1.0 / (1.0 - p) };
    let scale = c.full(Number::Float(scale), x.dtype.opmath(), &x.sizes)?;
    Ok([masked_scale(c, value, mask, scale)?, mask].into())
}

fn native_dropout_backward(c: &mut Call<'_>) -> Result<Outputs> {
    let (grad, mask) = (c.tensor(0)?, c.tensor(1)?);
    let dtype = c.out(0)?.dtype;
    let value = c.value(&grad, dtype)?;
    let mask = c.broadcast(&mask, DType::Bool, &grad.sizes)?;
    let scale = c.scalar(2, dtype.opmath())?;
    let scale = c.b.broadcast_scalar(scale, &grad.sizes)?;
    Ok(masked_scale(c, value, mask, scale)?.into())
}

/// `x * mask * scale`; a product, so that NaN and infinity stay NaN where the mask drops them, as on the CPU.
fn masked_scale(c: &mut Call<'_>, x: Value, mask: Value, scale: Value) -> Result<Value> {
    let dtype = convert::dtype_of(c.b, x)?;
    let (x, mask) = (c.convert(x, dtype.opmath())?, c.convert(mask, dtype.opmath())?);
    let masked = c.b.multiply(x, mask)?;
    let scaled = c.b.multiply(masked, scale)?;
    c.convert(scaled, dtype)
}

/// (output, noise): slopes drawn from [lower, upper) where x <= 0 in training, else their middle.
fn rrelu_with_noise(c: &mut Call<'_>) -> Result<Outputs> {
    let (x, noise) = (c.tensor(0)?, c.tensor(1)?);
    let acc = x.dtype.opmath();
    let value = c.value(&x, acc)?;
    let (lower, upper) = (c.scalar(2, acc)?, c.scalar(3, acc)?);
    let zero = convert::splat(c.b, value, Number::Int(0))?;
    let one = convert::splat(c.b, value, Number::Int(1))?;
    let negative = c.b.compare(value, zero, Direction::Le)?;
    let training = c.opt_bool(4)?.unwrap_or(false);
    let slope = if training {
        let unit = philox::unit(c, &x.sizes, x.dtype)?;
        let length = c.b.subtract(upper, lower)?;
        scale_and_shift(c, unit, length, lower, acc)?
    } else {
        let two = convert::constant(c.b, Number::Int(2), acc)?;
        let sum = c.b.add(lower, upper)?;
        let middle = c.b.divide(sum, two)?;
        c.b.broadcast_scalar(middle, &x.sizes)?
    };
    let slope = c.b.select(negative, slope, one)?;
    let result = c.b.multiply(value, slope)?;
    let result = c.convert(result, x.dtype)?;
    let noise = if training { c.convert(slope, noise.dtype)? } else { c.value(&noise, noise.dtype)? };
    Ok([result, noise].into())
}

fn randperm(c: &mut Call<'_>) -> Result<Outputs> {
    let out = c.out(0)?.clone();
    let [n] = out.sizes[..] else {
        return Err(LoweringError::invalid("randperm gives a vector"));
    };
    if n == 0 {
        return Ok(c.full(Number::Int(0), out.dtype, &out.sizes)?.into());
    }
    let numbers = philox::permutation(c, n, index_dtype(n))?;
    Ok(c.convert(numbers, out.dtype)?.into())
}
