//! The `prims` operators that PyTorch's reference decompositions emit. Their operands already agree in dtype and sizes,
//! so each is the ATen operator of the same meaning.

use crate::call::{Call, Outputs};
use crate::error::LoweringError;
use crate::registry::OpDef;

type Result<T> = std::result::Result<T, LoweringError>;

macro_rules! same_as {
    ($($prim:literal $aten:literal;)+) => {
        &[$(OpDef::new(concat!("prims::", $prim), |c| same(c, concat!("aten::", $aten))).composite()),+]
    };
}

pub const OPS: &[OpDef] = same_as! {
    "abs" "abs";
    "acos" "acos";
    "acosh" "acosh";
    "asin" "asin";
    "asinh" "asinh";
    "atan" "atan";
    "atan2" "atan2";
    "atanh" "atanh";
    "bessel_i0" "i0";
    "bessel_i0e" "special_i0e";
    "bessel_i1" "special_i1";
    "bessel_i1e" "special_i1e";
    "bitwise_and" "bitwise_and.Tensor";
    "bitwise_not" "bitwise_not";
    "bitwise_or" "bitwise_or.Tensor";
    "bitwise_xor" "bitwise_xor.Tensor";
    "ceil" "ceil";
    "cos" "cos";
    "cosh" "cosh";
    "digamma" "digamma";
    "eq" "eq.Tensor";
    "erf" "erf";
    "erf_inv" "erfinv";
    "erfc" "erfc";
    "exp" "exp";
    "exp2" "exp2";
    "expm1" "expm1";
    "floor" "floor";
    "fmax" "fmax";
    "fmin" "fmin";
    "fmod" "fmod.Tensor";
    "gcd" "gcd";
    "ge" "ge.Tensor";
    "gt" "gt.Tensor";
    "hypot" "hypot";
    "le" "le.Tensor";
    "lgamma" "lgamma";
    "log" "log";
    "log10" "log10";
    "log1p" "log1p";
    "log2" "log2";
    "lt" "lt.Tensor";
    "maximum" "maximum";
    "minimum" "minimum";
    "ndtri" "special_ndtri";
    "ne" "ne.Tensor";
    "neg" "neg";
    "nextafter" "nextafter";
    "reciprocal" "reciprocal";
    "remainder" "remainder.Tensor";
    "round" "round";
    "rsqrt" "rsqrt";
    "shift_left" "bitwise_left_shift.Tensor";
    "shift_right_arithmetic" "bitwise_right_shift.Tensor";
    "sign" "sign";
    "signbit" "signbit";
    "sin" "sin";
    "sinh" "sinh";
    "sqrt" "sqrt";
    "tan" "tan";
    "tanh" "tanh";
    "trunc" "trunc";
    "zeta" "special_zeta";
};

fn same(c: &mut Call<'_>, op: &'static str) -> Result<Outputs> {
    let args = c.args().to_vec();
    let outputs = c.output_metas().to_vec();
    c.delegate(op, args, outputs)
}
