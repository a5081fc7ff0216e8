//! The regularised incomplete gamma functions P and Q. As in Cephes and ATen there is a way for each region: a power
//! series, another one for small arguments, Legendre's continued fraction, and Temme's expansion where the first
//! argument is large (DLMF 8.7, 8.9, 8.12). All is computed in double precision, so that differences from 1 keep the
//! digits of f32, and no loop needs more than some hundred steps.

use std::f64::consts::PI;

use stablehlo::{Builder, Value};

use crate::call::{Call, Outputs};
use crate::dtype::DType;
use crate::elementwise::pointwise;
use crate::error::LoweringError;
use crate::formula::{Expr, formula, formulas};
use crate::registry::OpDef;
use crate::special::polynomial;

type Result<T> = std::result::Result<T, LoweringError>;

pub const OPS: &[OpDef] =
    &[OpDef::new("aten::igamma", |c| igamma(c, false)), OpDef::new("aten::igammac", |c| igamma(c, true))];

/// Coefficients of `c_k(η) = Σ d_kn η^n` in Temme's expansion, from the recurrence of DLMF 8.12.10 in rationals.
const TEMME: [&[f64]; 6] = [
    &[
        -0.3333333333333333,
        0.08333333333333333,
        -0.014814814814814815,
        0.0011574074074074073,
        0.0003527336860670194,
        -0.0001787551440329218,
        3.919263178522438e-05,
        -2.185448510679992e-06,
        -1.85406221071516e-06,
        8.296711340953087e-07,
        -1.7665952736826078e-07,
        6.707853543401498e-09,
        1.0261809784240309e-08,
        -4.382036018453353e-09,
        9.14769958223679e-10,
        -2.5514193994946248e-11,
    ],
    &[
        -0.001851851851851852,
        -0.003472222222222222,
        0.0026455026455026454,
        -0.0009902263374485596,
        0.00020576131687242798,
        -4.018775720164609e-07,
        -1.8098550334489977e-05,
        7.64916091608111e-06,
        -1.6120900894563446e-06,
        4.647127802807434e-09,
        1.378633446915721e-07,
        -5.752545603517705e-08,
        1.1951628599778148e-08,
        -1.7543241719747647e-11,
    ],
    &[
        0.004133597883597883,
        -0.0026813271604938273,
        0.0007716049382716049,
        2.0093878600823047e-06,
        -0.0001073665322636516,
        5.2923448829120125e-05,
        -1.2760635188618728e-05,
        3.423578734096138e-08,
        1.3721957309062934e-06,
        -6.298992138380055e-07,
        1.4280614206064242e-07,
        -2.0477098421990866e-10,
    ],
    &[
        0.0006494341563786008,
        0.00022947209362139917,
        -0.0004691894943952557,
        0.00026772063206283885,
        -7.561801671883977e-05,
        -2.396505113867297e-07,
        1.1082654115347302e-05,
        -5.6749528269915965e-06,
        1.4230900732435883e-06,
        -2.7861080291528143e-11,
    ],
    &[
        -0.0008618882909167117,
        0.0007840392217200666,
        -0.0002990724803031902,
        -1.4638452578843418e-06,
        6.641498215465122e-05,
        -3.968365047179435e-05,
        1.1375726970678419e-05,
        2.507497226237533e-10,
    ],
    &[
        -0.00033679855336635813,
        -6.972813758365857e-05,
        0.0002772753244959392,
        -0.00019932570516188847,
        6.797780477937208e-05,
        1.419062920643967e-07,
    ],
];
/// Taylor coefficients of log gamma(1 + a), from a² on: ζ(k) (-1)^k / k.
const LOG_GAMMA: [f64; 12] = [
    0.8224670334241132,
    -0.40068563438653143,
    0.27058080842778454,
    -0.20738555102867398,
    0.16955717699740822,
    -0.14404989676884614,
    0.12550966952474304,
    -0.11133426586956469,
    0.1000994575127818,
    -0.09095401714582904,
    0.083353840546109,
    -0.0769325164113522,
];
const EULER_GAMMA: f64 = 0.5772156649015329;
/// Where a term no longer counts.
const EPSILON: f64 = 1.1e-16;

/// aten::igamma(self, other) = P(self, other), or Q.
fn igamma(c: &mut Call<'_>, upper: bool) -> Result<Outputs> {
    let (a, x) = (c.tensor(0)?, c.tensor(1)?);
    pointwise(c, DType::Float64, [&a, &x], |[a, x]| value(a, x, upper))
}

fn value<'f>(a: Expr<'f>, x: Expr<'f>, upper: bool) -> Expr<'f> {
    let (zero, one, infinity) = (x.splat(0.0), x.splat(1.0), x.splat(f64::INFINITY));
    let deviation = ((x - a) / a).abs();
    let inside = a.gt(zero) & x.gt(zero) & a.lt(infinity) & x.lt(infinity);
    let large = inside & a.gt(a.splat(200.0)) & deviation.lt(a.splat(0.3));
    let fraction = inside & !large & x.gt(x.splat(1.1)) & x.gt(a);
    // Below 1.1, Q may be so near 1, or P so near 1, that only its own series has digits.
    let small = inside & !large & x.le(x.splat(1.1)) & {
        let low = (-0.4 / x.log()).ge(a);
        let middle = (x * 1.1).ge(a);
        x.le(x.splat(0.5)).select(low, middle)
    };
    let series = inside & !large & !fraction & !small;
    let of_two = |direct: Expr<'f>, is_upper: bool| if is_upper == upper { direct } else { 1.0 - direct };
    let safe = |used: Expr<'f>, a_else: f64, x_else: f64| {
        (used.select(a, a.splat(a_else)), used.select(x, x.splat(x_else)))
    };
    let (sa, sx) = safe(series, 1.0, 0.5);
    let by_series = of_two(power_series(sa, sx), false);
    let (fa, fx) = safe(fraction, 1.0, 2.0);
    let by_fraction = of_two(continued_fraction(fa, fx), true);
    let (ma, mx) = safe(small, 0.5, 0.5);
    let by_small = of_two(small_series(ma, mx), true);
    let (la, lx) = safe(large, 300.0, 300.0);
    let by_large = temme(la, lx, upper);
    let inner = large.select(by_large, fraction.select(by_fraction, small.select(by_small, by_series)));
    let (none, all) = if upper { (one, zero) } else { (zero, one) };
    // Edges, the last line first: negative; a = 0; x = 0; a infinite; x infinite; NaN, which all others go before.
    let nan = a.is_nan() | x.is_nan();
    let edge = nan.select(x.splat(f64::NAN), inner);
    let edge = x.eq(infinity).select(all, edge);
    let edge = a.eq(infinity).select(x.eq(infinity).select(x.splat(f64::NAN), none), edge);
    let edge = x.eq(zero).select(none, edge);
    let edge = a.eq(zero).select(x.gt(zero).select(all, x.splat(f64::NAN)), edge);
    (a.lt(zero) | x.lt(zero)).select(x.splat(f64::NAN), edge)
}

/// `x^a e^-x / gamma(a + 1)`, also where its factors overflow.
fn factor<'f>(a: Expr<'f>, x: Expr<'f>) -> Expr<'f> {
    let direct = a * x.log() - x - (a + 1.0).lgamma();
    let ratio = (x - a) / a;
    let square = 1.0 / (a * a);
    // Stirling's series for log gamma.
    let rest = polynomial(square, &[-1.0 / 1680.0, 1.0 / 1260.0, -1.0 / 360.0, 1.0 / 12.0]) / a;
    let stirling = a * (ratio.log1p() - ratio) - rest - (a * (2.0 * PI)).log() * 0.5;
    a.gt(a.splat(10.0)).select(stirling, direct).exp()
}

/// Repeats `step` on (number of the step, state) until no element changes by more than its rounding: the last value of
/// the state is the relative change.
fn until_converged<const N: usize>(
    b: &mut Builder,
    inits: [Value; N],
    step: impl for<'f> Fn([Expr<'f>; N]) -> [Expr<'f>; N],
) -> Result<[Value; N]> {
    let results = b.while_loop(
        &inits,
        |b, state| {
            let busy = formula(b, [state[N - 1]], |[change]| change.gt(change.splat(EPSILON)))
                .map_err(stablehlo::Error::body)?;
            let dims: Vec<i64> = (0..b.rank(busy) as i64).collect();
            b.reduce_or(busy, &dims)
        },
        |b, state| {
            let state: [Value; N] = std::array::from_fn(|i| state[i]);
            // What has converged stays, so that an element does not depend on others.
            let next: [Value; N] = formulas(b, state, |state| {
                let busy = state[N - 1].gt(state[N - 1].splat(EPSILON));
                let next = step(state);
                std::array::from_fn(|i| busy.select(next[i], state[i]))
            })
            .map_err(stablehlo::Error::body)?;
            Ok(next.to_vec())
        },
    )?;
    Ok(std::array::from_fn(|i| results[i]))
}

/// P(a, x) = factor * Σ x^n / ((a + 1) ... (a + n))
fn power_series<'f>(a: Expr<'f>, x: Expr<'f>) -> Expr<'f> {
    let one = x.splat(1.0);
    let sum = a.emit(|b, a| {
        let inits = [x.value, a, one.value, one.value, one.value];
        let [_, _, _, sum, _] = until_converged(b, inits, |[x, r, term, sum, _]| {
            let r = r + 1.0;
            let term = term * x / r;
            let sum = sum + term;
            [x, r, term, sum, term / sum]
        })?;
        Ok(sum)
    });
    factor(a, x) * sum
}

/// log gamma(1 + a), with its relative precision near 0.
fn log_gamma_one_plus(a: Expr<'_>) -> Expr<'_> {
    let mut reversed = LOG_GAMMA;
    reversed.reverse();
    let near = a * (a * polynomial(a, &reversed) - EULER_GAMMA);
    a.lt(a.splat(0.05)).select(near, (a + 1.0).lgamma())
}

/// Q(a, x) for x <= 1.1 and a that is not much larger: 1 - x^a / gamma(a + 1) (1 + a Σ (-x)^n / ((a + n) n!))
fn small_series<'f>(a: Expr<'f>, x: Expr<'f>) -> Expr<'f> {
    let one = x.splat(1.0);
    let zero = x.splat(0.0);
    let sum = a.emit(|b, a| {
        let inits = [x.value, a, zero.value, one.value, zero.value, one.value];
        let [_, _, _, _, sum, _] = until_converged(b, inits, |[x, a, n, factor, sum, _]| {
            let n = n + 1.0;
            let factor = factor * -x / n;
            let term = factor / (a + n);
            let sum = sum + term;
            [x, a, n, factor, sum, (term / sum).abs()]
        })?;
        Ok(sum)
    });
    let log = a * x.log() - log_gamma_one_plus(a);
    -log.expm1() - log.exp() * a * sum
}

/// Q(a, x) for x > a.
fn continued_fraction<'f>(a: Expr<'f>, x: Expr<'f>) -> Expr<'f> {
    let fraction = a.emit(|b, a| {
        let inits = formulas(b, [a, x.value], |[a, x]| {
            let (y, z) = (1.0 - a, x + 2.0 - a);
            let one = x.splat(1.0);
            [y, z, x.splat(0.0), one, x, x + 1.0, z * x, (x + 1.0) / (z * x), one]
        })?;
        let results = until_converged(b, inits, |[y, z, count, p2, q2, p1, q1, value, _]| {
            let (y, z, count) = (y + 1.0, z + 2.0, count + 1.0);
            let product = y * count;
            let (p, q) = (p1 * z - p2 * product, q1 * z - q2 * product);
            let next = p / q;
            let defined = q.ne(q.splat(0.0));
            let change = ((value - next) / next).abs();
            let change = defined.select(change, change.splat(1.0));
            let value = defined.select(next, value);
            // Numerators and denominators grow together.
            let big = p.abs().gt(p.splat(4503599627370496.0));
            let scale = big.select(p.splat(2f64.powi(-52)), p.splat(1.0));
            [y, z, count, p1 * scale, q1 * scale, p * scale, q * scale, value, change]
        })?;
        Ok(results[7])
    });
    // Where the factor is 0 the fraction may have overflowed.
    let factor = factor(a, x);
    factor.eq(factor.splat(0.0)).select(factor, fraction * factor * a)
}

/// Temme's uniform expansion, for large a and x near a.
fn temme<'f>(a: Expr<'f>, x: Expr<'f>, upper: bool) -> Expr<'f> {
    let ratio = (x - a) / a;
    let half_square = ratio - ratio.log1p();
    let eta = ratio.sign() * (half_square.max(ratio.splat(0.0)) * 2.0).sqrt();
    let mut sum = a.splat(0.0);
    for coefficients in TEMME.iter().rev() {
        let mut reversed = coefficients.to_vec();
        reversed.reverse();
        sum = sum / a + polynomial(eta, &reversed);
    }
    let correction = (-a * half_square).exp() * sum / (a * (2.0 * PI)).sqrt();
    let argument = eta * (a * 0.5).sqrt();
    if upper { argument.erfc() * 0.5 + correction } else { (-argument).erfc() * 0.5 - correction }
}
