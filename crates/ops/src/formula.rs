//! Elementwise formulas written as Rust expressions: `x * 0.5 * (x * FRAC_1_SQRT_2).erf()`.
//!
//! The values of one formula have equal dimensions. A number beside an expression is a constant of its type.
//! The first error of the builder is kept and reported when the formula ends.

use std::cell::{Cell, RefCell};
use std::ops;

use stablehlo::{Builder, Direction, ElementType, Value};

use crate::complex_functions;
use crate::convert;
use crate::dtype::DType;
use crate::error::LoweringError;
use crate::graph::Number;
use crate::hyperbolic;

pub struct Formula<'b> {
    builder: RefCell<&'b mut Builder>,
    error: Cell<Option<LoweringError>>,
}

impl<'b> Formula<'b> {
    fn emit<E: Into<LoweringError>>(
        &self,
        fallback: Value,
        build: impl FnOnce(&mut Builder) -> Result<Value, E>,
    ) -> Value {
        match build(&mut self.builder.borrow_mut()) {
            Ok(value) => value,
            Err(error) => {
                let first = self.error.take().unwrap_or_else(|| error.into());
                self.error.set(Some(first));
                fallback
            }
        }
    }
}

/// A value of a formula.
#[derive(Clone, Copy)]
pub struct Expr<'f> {
    formula: &'f Formula<'f>,
    pub value: Value,
}

/// Evaluates a formula over `values`.
pub fn formula<const N: usize>(
    b: &mut Builder,
    values: [Value; N],
    build: impl for<'f> FnOnce([Expr<'f>; N]) -> Expr<'f>,
) -> Result<Value, LoweringError> {
    formulas(b, values, |values| [build(values)]).map(|[value]| value)
}

/// A formula with several results.
pub fn formulas<const N: usize, const M: usize>(
    b: &mut Builder,
    values: [Value; N],
    build: impl for<'f> FnOnce([Expr<'f>; N]) -> [Expr<'f>; M],
) -> Result<[Value; M], LoweringError> {
    let formula = Formula { builder: RefCell::new(b), error: Cell::new(None) };
    let results = build(values.map(|value| Expr { formula: &formula, value })).map(|expr| expr.value);
    match formula.error.take() {
        None => Ok(results),
        Some(error) => Err(error),
    }
}

impl<'f> Expr<'f> {
    fn with(self, value: Value) -> Self {
        Expr { value, ..self }
    }

    pub fn elem(self) -> ElementType {
        self.formula.builder.borrow().elem(self.value)
    }

    /// An operation of the builder on this value.
    pub fn apply(self, op: fn(&mut Builder, Value) -> stablehlo::Result<Value>) -> Self {
        self.with(self.formula.emit(self.value, |b| op(b, self.value)))
    }

    /// An operation of the builder on this value and another.
    pub fn apply2(
        self,
        other: Expr<'f>,
        op: fn(&mut Builder, Value, Value) -> stablehlo::Result<Value>,
    ) -> Self {
        self.with(self.formula.emit(self.value, |b| op(b, self.value, other.value)))
    }

    /// Anything else that builds a value from this one.
    pub fn emit(self, build: impl FnOnce(&mut Builder, Value) -> Result<Value, LoweringError>) -> Self {
        self.with(self.formula.emit(self.value, |b| build(b, self.value)))
    }

    /// A constant of this value's type and dimensions.
    pub fn splat(self, number: f64) -> Self {
        self.emit(|b, x| convert::splat(b, x, Number::Float(number)))
    }

    pub fn splat_int(self, number: i64) -> Self {
        self.emit(|b, x| convert::splat(b, x, Number::Int(number)))
    }

    pub fn to(self, dtype: DType) -> Self {
        self.emit(|b, x| convert::convert(b, x, dtype))
    }

    fn compare(self, other: Expr<'f>, direction: Direction) -> Self {
        self.with(self.formula.emit(self.value, |b| b.compare(self.value, other.value, direction)))
    }

    pub fn eq(self, other: Expr<'f>) -> Self {
        self.compare(other, Direction::Eq)
    }

    pub fn ne(self, other: Expr<'f>) -> Self {
        self.compare(other, Direction::Ne)
    }

    pub fn lt(self, other: Expr<'f>) -> Self {
        self.compare(other, Direction::Lt)
    }

    pub fn le(self, other: Expr<'f>) -> Self {
        self.compare(other, Direction::Le)
    }

    pub fn gt(self, other: Expr<'f>) -> Self {
        self.compare(other, Direction::Gt)
    }

    pub fn ge(self, other: Expr<'f>) -> Self {
        self.compare(other, Direction::Ge)
    }

    pub fn is_nan(self) -> Self {
        self.ne(self)
    }

    pub fn is_inf(self) -> Self {
        self.abs().eq(self.splat(f64::INFINITY))
    }

    /// For a boolean expression: `yes` where it holds, else `no`.
    pub fn select(self, yes: Expr<'f>, no: Expr<'f>) -> Self {
        self.with(self.formula.emit(yes.value, |b| b.select(self.value, yes.value, no.value)))
    }

    /// The larger, NaN if either is.
    pub fn max(self, other: Expr<'f>) -> Self {
        self.apply2(other, Builder::maximum)
    }

    /// The smaller, NaN if either is.
    pub fn min(self, other: Expr<'f>) -> Self {
        self.apply2(other, Builder::minimum)
    }

    pub fn pow(self, other: Expr<'f>) -> Self {
        if self.elem().is_complex() {
            return complex_functions::power(self, other);
        }
        self.apply2(other, Builder::power)
    }

    pub fn atan2(self, other: Expr<'f>) -> Self {
        self.apply2(other, Builder::atan2)
    }

    /// Rounds to the precision and range of a narrower float without leaving this type. A pair of conversions does
    /// not do this: XLA may drop it.
    pub fn round_to(self, dtype: DType) -> Self {
        self.emit(|b, x| convert::round_to(b, x, dtype))
    }
}

macro_rules! unary {
    ($($(#[$doc:meta])* $name:ident = $builder:ident $(or $complex:path)?;)+) => {
        impl Expr<'_> {
            $($(#[$doc])* pub fn $name(self) -> Self {
                $(if self.elem().is_complex() {
                    return $complex(self);
                })?
                self.apply(Builder::$builder)
            })+
        }
    };
}

unary! {
    abs = abs or complex_functions::abs;
    ceil = ceil;
    cos = cosine or complex_functions::cos;
    exp = exponential or complex_functions::exp;
    expm1 = exponential_minus_one or complex_functions::exp_minus_one;
    floor = floor;
    log = log or complex_functions::log;
    log1p = log_plus_one or complex_functions::log_plus_one;
    logistic = logistic or complex_functions::logistic;
    round_even = round_nearest_even;
    rsqrt = rsqrt or complex_functions::rsqrt;
    sign = sign;
    sin = sine or complex_functions::sin;
    sqrt = sqrt or complex_functions::sqrt;
    tan = tan or complex_functions::tan;
    tanh = tanh or complex_functions::tanh;
    real = real;
    imag = imag;
    erf = erf;
    erfc = erfc;
    erf_inv = erf_inv;
    lgamma = lgamma;
    digamma = digamma;
    asin = asin or complex_functions::asin;
    acos = acos or complex_functions::acos;
    atan = atan or complex_functions::atan;
    asinh = asinh or complex_functions::asinh;
    acosh = acosh or complex_functions::acosh;
    atanh = atanh or complex_functions::atanh;
}

impl Expr<'_> {
    pub fn sinh(self) -> Self {
        if self.elem().is_complex() { complex_functions::sinh(self) } else { hyperbolic::sinh(self) }
    }

    pub fn cosh(self) -> Self {
        if self.elem().is_complex() { complex_functions::cosh(self) } else { hyperbolic::cosh(self) }
    }
}

impl ops::Neg for Expr<'_> {
    type Output = Self;
    fn neg(self) -> Self {
        self.apply(Builder::negate)
    }
}

impl ops::Not for Expr<'_> {
    type Output = Self;
    fn not(self) -> Self {
        self.apply(Builder::not)
    }
}

macro_rules! binary {
    ($($trait:ident $method:ident $builder:ident;)+) => {
        $(impl ops::$trait for Expr<'_> {
            type Output = Self;
            fn $method(self, other: Self) -> Self {
                self.apply2(other, Builder::$builder)
            }
        })+
    };
}

binary! {
    Add add add;
    Sub sub subtract;
    Mul mul multiply;
    Rem rem remainder;
    BitAnd bitand and;
    BitOr bitor or;
    BitXor bitxor xor;
}

impl ops::Div for Expr<'_> {
    type Output = Self;
    fn div(self, other: Self) -> Self {
        if self.elem().is_complex() {
            return complex_functions::divide(self, other);
        }
        self.apply2(other, Builder::divide)
    }
}

/// A number beside a complex value is real, and acts on its parts: as a complex factor it would make NaN of infinities,
/// as a complex term it would lose the sign of a zero.
impl Expr<'_> {
    fn with_number(self, both_parts: bool, op: impl Fn(Self) -> Self) -> Self {
        if !self.elem().is_complex() {
            return op(self);
        }
        let imag = if both_parts { op(self.imag()) } else { self.imag() };
        op(self.real()).apply2(imag, Builder::complex)
    }
}

macro_rules! with_number {
    ($($trait:ident $method:ident $both_parts:literal;)+) => {
        $(impl ops::$trait<f64> for Expr<'_> {
            type Output = Self;
            fn $method(self, other: f64) -> Self {
                self.with_number($both_parts, |x| ops::$trait::$method(x, x.splat(other)))
            }
        })+
    };
}

with_number! {
    Add add false;
    Sub sub false;
    Mul mul true;
    Div div true;
}

impl<'f> ops::Add<Expr<'f>> for f64 {
    type Output = Expr<'f>;
    fn add(self, other: Expr<'f>) -> Expr<'f> {
        other + self
    }
}

impl<'f> ops::Mul<Expr<'f>> for f64 {
    type Output = Expr<'f>;
    fn mul(self, other: Expr<'f>) -> Expr<'f> {
        other * self
    }
}

impl<'f> ops::Sub<Expr<'f>> for f64 {
    type Output = Expr<'f>;
    fn sub(self, other: Expr<'f>) -> Expr<'f> {
        other.splat(self) - other
    }
}

impl<'f> ops::Div<Expr<'f>> for f64 {
    type Output = Expr<'f>;
    fn div(self, other: Expr<'f>) -> Expr<'f> {
        other.splat(self) / other
    }
}
