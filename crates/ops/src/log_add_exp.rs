//! log(exp x + exp y) without overflow, and its scan.

use std::f64::consts::LN_2;

use stablehlo::{Builder, Value};

use crate::call::{Call, Outputs};
use crate::convert;
use crate::elementwise::binary;
use crate::error::LoweringError;
use crate::formula::{Expr, formula};
use crate::graph::{Dims, Number};
use crate::linalg::{position, repeat};
use crate::registry::OpDef;
use crate::scans::cumulate;

type Result<T> = std::result::Result<T, LoweringError>;

pub const OPS: &[OpDef] = &[
    OpDef::new("aten::logaddexp", log_add_exp),
    OpDef::new("aten::logaddexp2", log_add_exp2),
    OpDef::new("aten::_logcumsumexp", log_cumsum_exp),
    OpDef::new("aten::logcumsumexp", log_cumsum_exp),
];

fn log_add_exp(c: &mut Call<'_>) -> Result<Outputs> {
    if c.out(0)?.dtype.is_complex() {
        return binary(c, complex_sum);
    }
    binary(c, |x, y| {
        let sum = x.max(y) + (-(x - y).abs()).exp().log1p();
        (x.eq(y) & x.is_inf()).select(x, sum)
    })
}

fn log_add_exp2(c: &mut Call<'_>) -> Result<Outputs> {
    if c.out(0)?.dtype.is_complex() {
        return Err(LoweringError::unsupported("complex operands"));
    }
    binary(c, |x, y| {
        let sum = x.max(y) + (-(x - y).abs() * LN_2).exp().log1p() / LN_2;
        (x.eq(y) & x.is_inf()).select(x, sum)
    })
}

/// The larger operand is the one with the larger real part. Where both are as small as can be, the angle does not
/// matter and the first of the two is the answer.
fn complex_sum<'f>(x: Expr<'f>, y: Expr<'f>) -> Expr<'f> {
    let y_is_larger = x.real().lt(y.real());
    let (low, high) = (y_is_larger.select(x, y), y_is_larger.select(y, x));
    let one_of_two = low.real().eq(high.real()) & low.real().is_inf();
    let of_infinities = low.real().lt(low.real().splat(0.0)).select(low, (low.exp() + high.exp()).log());
    let sum = (low - high).exp().log1p() + high;
    let nan = x.emit(|b, x| convert::splat(b, x, Number::Complex(f64::NAN, f64::NAN)));
    (x.is_nan() | y.is_nan()).select(nan, one_of_two.select(of_infinities, sum))
}

fn log_cumsum_exp(c: &mut Call<'_>) -> Result<Outputs> {
    if c.out(0)?.dtype.is_complex() {
        return complex_scan(c);
    }
    cumulate(c, |x, y| {
        let (low, high) = (x.min(y), x.max(y));
        let sum = (low - high).exp().log1p() + high;
        (low.ne(high) | !low.is_inf()).select(sum, x)
    })
}

/// One element after the other: multiples of 2 pi in the imaginary part depend on the order.
fn complex_scan(c: &mut Call<'_>) -> Result<Outputs> {
    let x = c.tensor(0)?;
    let out = c.out(0)?.clone();
    let dim = c.dim(1, x.rank())?;
    let mut sizes = Dims::from_slice(&x.sizes);
    if sizes.is_empty() {
        sizes.push(1);
    }
    let value = c.value(&x, out.dtype)?;
    let value = c.b.reshape(value, &sizes)?;
    let mut slice = sizes.clone();
    slice[dim] = 1;
    let nothing = c.full(Number::Complex(f64::NEG_INFINITY, 0.0), out.dtype, &slice)?;
    let place = |b: &mut Builder, at: Value| -> Result<Vec<Value>> {
        let zero = position(b, 0)?;
        Ok((0..sizes.len()).map(|other| if other == dim { at } else { zero }).collect())
    };
    let results = repeat(c.b, sizes[dim], &[value, nothing], |b, at, state| {
        let starts = place(b, at)?;
        let next = b.dynamic_slice(state[0], &starts, &slice)?;
        let sum = formula(b, [next, state[1]], |[next, sum]| complex_sum(next, sum))?;
        Ok(vec![b.dynamic_update_slice(state[0], sum, &starts)?, sum])
    })?;
    Ok(c.b.reshape(results[0], &out.sizes)?.into())
}
