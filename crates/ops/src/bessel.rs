//! Bessel and Airy functions, by the rational approximations of the Cephes library (Moshier), as ATen computes them.

use std::f64::consts::{FRAC_2_PI, FRAC_PI_4, PI};

use crate::elementwise::unary;
use crate::formula::Expr;
use crate::registry::OpDef;
use crate::special::{chebyshev, i0e, polynomial};

pub const OPS: &[OpDef] = &[
    OpDef::new("aten::special_airy_ai", |c| unary(c, airy_ai)),
    OpDef::new("aten::special_bessel_j0", |c| unary(c, j0)),
    OpDef::new("aten::special_bessel_j1", |c| unary(c, j1)),
    OpDef::new("aten::special_bessel_y0", |c| unary(c, y0)),
    OpDef::new("aten::special_bessel_y1", |c| unary(c, y1)),
    OpDef::new("aten::special_modified_bessel_i0", |c| unary(c, i0)),
    OpDef::new("aten::special_modified_bessel_i1", |c| unary(c, i1)),
    OpDef::new("aten::special_modified_bessel_k0", |c| unary(c, |x| k0(x, false))),
    OpDef::new("aten::special_modified_bessel_k1", |c| unary(c, |x| k1(x, false))),
    OpDef::new("aten::special_scaled_modified_bessel_k0", |c| unary(c, |x| k0(x, true))),
    OpDef::new("aten::special_scaled_modified_bessel_k1", |c| unary(c, |x| k1(x, true))),
    OpDef::new("aten::special_spherical_bessel_j0", |c| unary(c, spherical_j0)),
];

/// Numerator and denominator, highest power first.
type Ratio = (&'static [f64], &'static [f64]);

fn ratio<'f>(x: Expr<'f>, (top, bottom): Ratio) -> Expr<'f> {
    polynomial(x, top) / polynomial(x, bottom)
}

/// Amplitudes of the cosine and sine parts of order 0 and 1 beyond 5, in 25/x².
const COSINE_0: Ratio = (
    &[
        0.0007969367292973471,
        0.08283523921074408,
        1.239533716464143,
        5.447250030587687,
        8.74716500199817,
        5.303240382353949,
        1.0,
    ],
    &[
        0.0009244088105588637,
        0.08562884743544745,
        1.2535274390105895,
        5.470977403304171,
        8.761908832370695,
        5.306052882353947,
        1.0,
    ],
);
const SINE_0: Ratio = (
    &[
        -0.011366383889846916,
        -1.2825271867050931,
        -19.553954425773597,
        -93.20601521237683,
        -177.68116798048806,
        -147.07750515495118,
        -51.41053267665993,
        -6.050143506007285,
    ],
    &[
        64.3178256118178,
        856.4300259769806,
        3882.4018360540163,
        7240.467741956525,
        5930.727011873169,
        2062.0933166032783,
        242.0057402402914,
    ],
);
const COSINE_1: Ratio = (
    &[
        0.0007621256162081731,
        0.07313970569409176,
        1.1271960812968493,
        5.112079511468076,
        8.424045901417724,
        5.214515986823615,
        1.0,
    ],
    &[
        0.0005713231280725487,
        0.06884559087544954,
        1.105142326340617,
        5.073863861286015,
        8.399855543276042,
        5.209828486823619,
        1.0,
    ],
);
const SINE_1: Ratio = (
    &[
        0.05108625947501766,
        4.982138729512334,
        75.82382841325453,
        366.7796093601508,
        710.8563049989261,
        597.4896124006136,
        211.68875710057213,
        25.207020585802372,
    ],
    &[
        74.23732770356752,
        1056.4488603826283,
        4986.410583376536,
        9562.318924047562,
        7997.041604473507,
        2826.1927851763908,
        336.0936078106983,
    ],
);
/// The functions up to 5, in x², without their first two zeros or their logarithm.
const J0_SMALL: Ratio = (
    &[-4794432209.782018, 1956174919465.5657, -249248344360967.72, 9708622510473064.0],
    &[
        499.563147152651,
        173785.4016763747,
        48440965.83399621,
        11185553704.535683,
        2112775201154.892,
        310518229857422.56,
        3.1812195594320496e+16,
        1.7108629408104315e+18,
    ],
);
const J1_SMALL: Ratio = (
    &[-899971225.7055594, 452228297998.19403, -72749424522181.83, 3682957328638529.0],
    &[
        620.8364781180543,
        256987.25675774884,
        83514679.14319493,
        22151159547.97925,
        4749141220799.914,
        784369607876235.9,
        8.952223361846274e+16,
        5.322786203326801e+18,
    ],
);
const Y0_SMALL: Ratio = (
    &[
        15592.436785523574,
        -14663929.59039716,
        5435264770.518765,
        -982136065717.9115,
        87590639439536.7,
        -3466283033847297.0,
        4.4273326857256984e+16,
        -1.8495080043698668e+16,
    ],
    &[
        1041.2835366425984,
        626107.330137135,
        268919633.39381415,
        86400248710.3935,
        20297961275010.555,
        3171577528429750.5,
        2.5059625617265306e+17,
    ],
);
const Y1_SMALL: Ratio = (
    &[
        1263204747.9017804,
        -647355876379.1603,
        114509511541823.73,
        -8127702555013251.0,
        2.024394757135949e+17,
        -7.788771962659501e+17,
    ],
    &[
        594.3015923461282,
        235564.09294306856,
        73481194.44597217,
        18760131610.870617,
        3882312774962.3857,
        620557727146953.8,
        6.871410873553005e+16,
        3.9727060811656064e+18,
    ],
);
/// Chebyshev series of K up to 2, in x² - 2, and beyond, in 8/x - 2.
const K0_SMALL: &[f64] = &[
    1.374465435613523e-16,
    4.25981614279661e-14,
    1.0349695257633842e-11,
    1.904516377220209e-09,
    2.5347910790261494e-07,
    2.286212103119452e-05,
    0.001264615411446926,
    0.0359799365153615,
    0.3442898999246285,
    -0.5353273932339028,
];
const K0_LARGE: &[f64] = &[
    5.300433772686263e-18,
    -1.6475804301524212e-17,
    5.2103915050390274e-17,
    -1.678231096805412e-16,
    5.512055978524319e-16,
    -1.848593377343779e-15,
    6.3400764774050706e-15,
    -2.2275133269916698e-14,
    8.032890775363575e-14,
    -2.9800969231727303e-13,
    1.140340588208475e-12,
    -4.514597883373944e-12,
    1.8559491149547177e-11,
    -7.957489244477107e-11,
    3.577397281400301e-10,
    -1.69753450938906e-09,
    8.574034017414225e-09,
    -4.660489897687948e-08,
    2.766813639445015e-07,
    -1.8317555227191195e-06,
    1.39498137188765e-05,
    -0.00012849549581627802,
    0.0015698838857300533,
    -0.0314481013119645,
    2.4403030820659555,
];
const K1_SMALL: &[f64] = &[
    -7.023863479386288e-18,
    -2.427449850519366e-15,
    -6.666901694199329e-13,
    -1.4114883926335278e-10,
    -2.213387630734726e-08,
    -2.4334061415659684e-06,
    -0.0001730288957513052,
    -0.006975723859639864,
    -0.12261118082265715,
    -0.3531559607765449,
    1.5253002273389478,
];
const K1_LARGE: &[f64] = &[
    -5.756744483665017e-18,
    1.7940508731475592e-17,
    -5.689462558442859e-17,
    1.838093544366639e-16,
    -6.057047248373319e-16,
    2.038703165624334e-15,
    -7.019837090418314e-15,
    2.4771544244813043e-14,
    -8.976705182324994e-14,
    3.3484196660784293e-13,
    -1.2891739609510289e-12,
    5.13963967348173e-12,
    -2.1299678384275683e-11,
    9.218315187605006e-11,
    -4.1903547593418965e-10,
    2.015049755197033e-09,
    -1.0345762465678097e-08,
    5.7410841254500495e-08,
    -3.5019606030878126e-07,
    2.406484947837217e-06,
    -1.936197974166083e-05,
    0.00019521551847135162,
    -0.002857816859622779,
    0.10392373657681724,
    2.7206261904844427,
];
/// Airy's function beyond 2.09, and the two parts of its oscillation below -2.09.
const AIRY_DECAY: Ratio = (
    &[
        0.346538101525629,
        12.007595273964581,
        76.27960536152345,
        168.08922493463058,
        159.75639135016442,
        70.53609068404442,
        14.026469116338967,
        1.0,
    ],
    &[
        0.5675945326387702,
        14.75625625848472,
        84.51389701414746,
        177.31808814540045,
        164.2346928715297,
        71.47784008255756,
        14.095913560783403,
        1.0,
    ],
);
const AIRY_SINE: Ratio = (
    &[
        -0.1316963234183318,
        -0.6264565444319123,
        -0.6931580360369335,
        -0.2797799815451191,
        -0.04919001326095003,
        -0.004062659235948854,
        -0.0001592764962392621,
        -2.776491081552329e-06,
        -1.6778769848911465e-08,
    ],
    &[
        13.356042070655324,
        32.682503279522464,
        26.736704094149957,
        9.187074029072596,
        1.4752914677166642,
        0.11568717379518804,
        0.004402916416152112,
        7.547203482874142e-05,
        4.5185009297058035e-07,
    ],
);
const AIRY_COSINE: Ratio = (
    &[
        0.01973399320916857,
        0.39110302961568827,
        1.0657989759959559,
        0.9391692298166502,
        0.35146565610554764,
        0.06338889196289255,
        0.005858041130483885,
        0.000282851600836737,
        6.98793669997261e-06,
        8.117892395543892e-08,
        3.415517847659236e-10,
    ],
    &[
        9.30892908077442,
        19.835292871831214,
        15.564662893286462,
        5.476860694229755,
        0.9542936116189619,
        0.08645808263523921,
        0.004126565238242226,
        0.00010125908511650914,
        1.1716673321441352e-06,
        4.9183457006293e-09,
    ],
);

/// sqrt(2/pi x) (P cos(x - phase) - 5/x Q sin(x - phase)), the wave of J; Y has sine and cosine exchanged.
struct Wave<'f> {
    amplitude: Expr<'f>,
    cosine: Expr<'f>,
    sine: Expr<'f>,
    p: Expr<'f>,
    q: Expr<'f>,
}

impl<'f> Wave<'f> {
    fn new(x: Expr<'f>, phase: f64, p: Ratio, q: Ratio) -> Self {
        let square = 25.0 / (x * x);
        let shifted = x - phase;
        Wave {
            amplitude: x.splat(FRAC_2_PI.sqrt()) / x.sqrt(),
            cosine: shifted.cos(),
            sine: shifted.sin(),
            p: ratio(square, p),
            q: 5.0 / x * ratio(square, q),
        }
    }

    fn first_kind(&self) -> Expr<'f> {
        (self.p * self.cosine - self.q * self.sine) * self.amplitude
    }

    fn second_kind(&self) -> Expr<'f> {
        (self.p * self.sine + self.q * self.cosine) * self.amplitude
    }
}

fn wave_0<'f>(x: Expr<'f>) -> Wave<'f> {
    Wave::new(x, FRAC_PI_4, COSINE_0, SINE_0)
}

fn wave_1<'f>(x: Expr<'f>) -> Wave<'f> {
    Wave::new(x, 3.0 * FRAC_PI_4, COSINE_1, SINE_1)
}

fn j0<'f>(x: Expr<'f>) -> Expr<'f> {
    let x = x.abs();
    let square = x * x;
    let small =
        (square - 5.783_185_962_946_784) * (square - 30.471_262_343_662_087) * ratio(square, J0_SMALL);
    let tiny = 1.0 - square * 0.25;
    let small = x.lt(x.splat(0.00001)).select(tiny, small);
    x.le(x.splat(5.0)).select(small, wave_0(x).first_kind())
}

fn j1<'f>(x: Expr<'f>) -> Expr<'f> {
    let y = x.abs();
    let square = y * y;
    let small =
        ratio(square, J1_SMALL) * y * (square - 14.681_970_642_123_893) * (square - 49.218_456_321_694_6);
    let value = y.le(y.splat(5.0)).select(small, wave_1(y).first_kind());
    x.lt(x.splat(0.0)).select(-value, value)
}

/// -inf at 0 and NaN below, for the functions of the second kind.
fn right_of_zero<'f>(x: Expr<'f>, value: Expr<'f>, at_zero: f64) -> Expr<'f> {
    let zero = x.splat(0.0);
    let value = x.lt(zero).select(x.splat(f64::NAN), value);
    x.eq(zero).select(x.splat(at_zero), value)
}

fn y0<'f>(x: Expr<'f>) -> Expr<'f> {
    let small = ratio(x * x, Y0_SMALL) + x.log() * j0(x) * FRAC_2_PI;
    let value = x.le(x.splat(5.0)).select(small, wave_0(x).second_kind());
    right_of_zero(x, value, f64::NEG_INFINITY)
}

fn y1<'f>(x: Expr<'f>) -> Expr<'f> {
    let small = x * ratio(x * x, Y1_SMALL) + (j1(x) * x.log() - 1.0 / x) * FRAC_2_PI;
    let value = x.le(x.splat(5.0)).select(small, wave_1(x).second_kind());
    right_of_zero(x, value, f64::NEG_INFINITY)
}

fn i0<'f>(x: Expr<'f>) -> Expr<'f> {
    i0e(x) * x.abs().exp()
}

fn i1<'f>(x: Expr<'f>) -> Expr<'f> {
    x.apply(stablehlo::Builder::bessel_i1e) * x.abs().exp()
}

/// K0(x), or exp(x) K0(x).
fn k0<'f>(x: Expr<'f>, scaled: bool) -> Expr<'f> {
    let small = chebyshev(x * x - 2.0, K0_SMALL) - (x * 0.5).log() * i0(x);
    let large = chebyshev(8.0 / x - 2.0, K0_LARGE) / x.sqrt();
    scale(x, small, large, scaled)
}

/// K1(x), or exp(x) K1(x).
fn k1<'f>(x: Expr<'f>, scaled: bool) -> Expr<'f> {
    let small = (x * 0.5).log() * i1(x) + chebyshev(x * x - 2.0, K1_SMALL) / x;
    let large = chebyshev(8.0 / x - 2.0, K1_LARGE) / x.sqrt();
    scale(x, small, large, scaled)
}

fn scale<'f>(x: Expr<'f>, small: Expr<'f>, large: Expr<'f>, scaled: bool) -> Expr<'f> {
    let (small, large) = if scaled { (small * x.exp(), large) } else { (small, large * (-x).exp()) };
    let value = x.le(x.splat(2.0)).select(small, large);
    right_of_zero(x, value, f64::INFINITY)
}

/// Taylor's series between -2.09 and 2.09.
fn airy_ai<'f>(x: Expr<'f>) -> Expr<'f> {
    let root_pi = PI.sqrt();
    let size = x.abs();
    let root = size.sqrt();
    let zeta = size * root * (2.0 / 3.0);
    let inverse = 1.0 / zeta;

    let square = inverse * inverse;
    let phase = zeta + FRAC_PI_4;
    let sine = phase.sin() * (1.0 + square * ratio(square, AIRY_SINE));
    let cosine = phase.cos() * (inverse * ratio(square, AIRY_COSINE));
    let oscillation = (sine - cosine) / (root.sqrt() * root_pi);

    let decay = ratio(inverse, AIRY_DECAY) / (root.sqrt() * zeta.exp() * (2.0 * root_pi));
    let decay = x.gt(x.splat(103.892)).select(x.splat(0.0), decay);

    let cube = x * x * x;
    let (mut f, mut g, mut m, mut n) = (x.splat(1.0), x, x.splat(1.0), x);
    for k in 1..=14 {
        let k = f64::from(3 * k);
        m = m * cube / (k * (k - 1.0));
        n = n * cube / (k * (k + 1.0));
        f = f + m;
        g = g + n;
    }
    let series = f * 0.355_028_053_887_817_2 - g * 0.258_819_403_792_806_8;

    let value = x.lt(x.splat(-2.09)).select(oscillation, series);
    let value = x.ge(x.splat(2.09)).select(decay, value);
    x.is_inf().select(x.splat(f64::NAN), value)
}

/// sin(x)/x
fn spherical_j0<'f>(x: Expr<'f>) -> Expr<'f> {
    let square = x * x;
    // 1/13!, 1/11!, ... with alternating signs.
    let coefficients = [13.0, 11.0, 9.0, 7.0, 5.0, 3.0, 1.0].map(|n: f64| {
        let factorial: f64 = (1..=n as i64).map(|k| k as f64).product();
        let sign = if (n as i64 / 2) % 2 == 0 { 1.0 } else { -1.0 };
        sign / factorial
    });
    let near = polynomial(square, &coefficients);
    let value = x.abs().lt(x.splat(0.5)).select(near, x.sin() / x);
    x.is_inf().select(x.splat(0.0), value)
}
