use crate::ir::{Attr, Syntax};
use crate::{Builder, Direction, ElementType, Error, Result, Value};

fn any(_: ElementType) -> bool {
    true
}

pub(crate) fn float_or_complex(e: ElementType) -> bool {
    e.is_float() || e.is_complex()
}

fn number(e: ElementType) -> bool {
    !e.is_pred()
}

fn real_number(e: ElementType) -> bool {
    e.is_int() || e.is_float()
}

fn signed(e: ElementType) -> bool {
    e.is_signed()
}

fn pred_or_int(e: ElementType) -> bool {
    e.is_pred() || e.is_int()
}

/// Declares methods by arity, helper, dialect and rule for the element type.
macro_rules! elementwise {
    (unary $apply:ident $dialect:literal $($(#[$doc:meta])* $method:ident $allowed:path, $expected:literal;)+) => {
        impl Builder {
            $($(#[$doc])* pub fn $method(&mut self, x: Value) -> Result<Value> {
                self.$apply(concat!($dialect, stringify!($method)), &[x], $expected, $allowed)
            })+
        }
    };
    (binary $apply:ident $dialect:literal $($(#[$doc:meta])* $method:ident $allowed:path, $expected:literal;)+) => {
        impl Builder {
            $($(#[$doc])* pub fn $method(&mut self, lhs: Value, rhs: Value) -> Result<Value> {
                self.$apply(concat!($dialect, stringify!($method)), &[lhs, rhs], $expected, $allowed)
            })+
        }
    };
}
pub(crate) use elementwise;

elementwise! { unary same_type "stablehlo."
    /// XLA has no complex cube root.
    cbrt ElementType::is_float, "a float type";
    ceil ElementType::is_float, "a float type";
    cosine float_or_complex, "a float or complex type";
    count_leading_zeros ElementType::is_int, "an integer type";
    exponential float_or_complex, "a float or complex type";
    exponential_minus_one float_or_complex, "a float or complex type";
    floor ElementType::is_float, "a float type";
    log float_or_complex, "a float or complex type";
    log_plus_one float_or_complex, "a float or complex type";
    logistic float_or_complex, "a float or complex type";
    negate number, "an integer, float or complex type";
    /// Bitwise complement; logical for `Pred`.
    not pred_or_int, "a boolean or integer type";
    popcnt ElementType::is_int, "an integer type";
    round_nearest_afz ElementType::is_float, "a float type";
    round_nearest_even ElementType::is_float, "a float type";
    rsqrt float_or_complex, "a float or complex type";
    /// -1, ±0, 1 or NaN; for complex numbers x / |x|.
    sign signed, "a signed integer, float or complex type";
    sine float_or_complex, "a float or complex type";
    sqrt float_or_complex, "a float or complex type";
    tan float_or_complex, "a float or complex type";
    tanh float_or_complex, "a float or complex type";
}

elementwise! { binary same_type "stablehlo."
    /// Sum; logical or for `Pred`.
    add any, "any type";
    and pred_or_int, "a boolean or integer type";
    atan2 float_or_complex, "a float or complex type";
    divide number, "an integer, float or complex type";
    /// The larger operand; NaN if either is; for `Pred` logical or. XLA's CPU back end gives the other
    /// operand instead of a NaN on the right unless `xla_cpu_enable_fast_min_max` is off.
    maximum any, "any type";
    /// The smaller operand; as [`Builder::maximum`].
    minimum any, "any type";
    /// Product; logical and for `Pred`.
    multiply any, "any type";
    or pred_or_int, "a boolean or integer type";
    /// Power. XLA's CPU back end uses the low six bits of an integer exponent (measured: wrong from 64
    /// on, and from 128 on for `U8`, which it reads as signed).
    power number, "an integer, float or complex type";
    /// Remainder with the sign of the dividend, as C has it. XLA crashes on complex operands.
    remainder real_number, "an integer or float type";
    shift_left ElementType::is_int, "an integer type";
    /// Copies the highest bit, also of an unsigned operand.
    shift_right_arithmetic ElementType::is_int, "an integer type";
    shift_right_logical ElementType::is_int, "an integer type";
    subtract number, "an integer, float or complex type";
    xor pred_or_int, "a boolean or integer type";
}

impl Builder {
    pub(crate) fn same_type(
        &mut self,
        name: &'static str,
        operands: &[Value],
        expected: &'static str,
        allowed: impl Fn(ElementType) -> bool,
    ) -> Result<Value> {
        let op = crate::builder::short(name);
        self.known(op, operands)?;
        let ty = self.ty(operands[0]).clone();
        if operands.iter().any(|&v| *self.ty(v) != ty) {
            return Err(Error::TypeMismatch { op, operands: self.types(operands) });
        }
        self.require_elem(op, operands, operands[0], expected, allowed)?;
        Ok(self.push(name, Syntax::SameType, operands, Vec::new(), Vec::new(), vec![ty])?[0])
    }

    /// |x|. A complex operand gives its real part type; an unsigned one is returned as it is.
    pub fn abs(&mut self, x: Value) -> Result<Value> {
        self.known("abs", &[x])?;
        let elem = self.elem(x);
        if elem.is_unsigned_int() {
            return Ok(x);
        }
        self.require_elem("abs", &[x], x, "an integer, float or complex type", number)?;
        if elem.is_complex() {
            let ty = self.ty(x).with_elem(elem.real_part());
            return self.generic("stablehlo.abs", &[x], Vec::new(), ty);
        }
        self.same_type("stablehlo.abs", &[x], "a signed type", signed)
    }

    /// True where a float is neither infinite nor NaN.
    pub fn is_finite(&mut self, x: Value) -> Result<Value> {
        self.known("is_finite", &[x])?;
        self.require_elem("is_finite", &[x], x, "a float type", ElementType::is_float)?;
        let ty = self.ty(x).with_elem(ElementType::Pred);
        self.generic("stablehlo.is_finite", &[x], Vec::new(), ty)
    }

    /// Real part; a real operand is returned as it is.
    pub fn real(&mut self, x: Value) -> Result<Value> {
        self.known("real", &[x])?;
        if self.elem(x).is_float() {
            return Ok(x);
        }
        self.require_elem("real", &[x], x, "a float or complex type", float_or_complex)?;
        let ty = self.ty(x).with_elem(self.elem(x).real_part());
        self.generic("stablehlo.real", &[x], Vec::new(), ty)
    }

    pub fn imag(&mut self, x: Value) -> Result<Value> {
        self.known("imag", &[x])?;
        self.require_elem("imag", &[x], x, "a complex type", ElementType::is_complex)?;
        let ty = self.ty(x).with_elem(self.elem(x).real_part());
        self.generic("stablehlo.imag", &[x], Vec::new(), ty)
    }

    /// A complex tensor from two equal `F32` or `F64` tensors.
    pub fn complex(&mut self, re: Value, im: Value) -> Result<Value> {
        let operands = [re, im];
        self.known("complex", &operands)?;
        if self.ty(re) != self.ty(im) {
            return Err(Error::TypeMismatch { op: "complex", operands: self.types(&operands) });
        }
        let elem = self.elem(re);
        let Some(complex) = elem.to_complex() else {
            let operands = self.types(&operands);
            return Err(Error::ElementType { op: "complex", operands, elem, expected: "f32 or f64" });
        };
        let ty = self.ty(re).with_elem(complex);
        self.generic("stablehlo.complex", &operands, Vec::new(), ty)
    }

    /// `min(max(x, min), max)`. The bounds have the type of `x` or are scalars of its element type.
    pub fn clamp(&mut self, min: Value, x: Value, max: Value) -> Result<Value> {
        let operands = [min, x, max];
        self.known("clamp", &operands)?;
        let ty = self.ty(x).clone();
        for bound in [min, max] {
            let b = self.ty(bound);
            if b.elem != ty.elem || !(b.dims.is_empty() || b.dims == ty.dims) {
                return Err(self.shape_error(
                    "clamp",
                    &operands,
                    "the bounds must be scalars or have the dimensions of x, with its element type",
                ));
            }
        }
        self.generic("stablehlo.clamp", &operands, Vec::new(), ty)
    }

    /// `on_true` where `pred` holds, else `on_false`. `pred` is a scalar or has their dimensions.
    pub fn select(&mut self, pred: Value, on_true: Value, on_false: Value) -> Result<Value> {
        let operands = [pred, on_true, on_false];
        self.known("select", &operands)?;
        self.require_elem("select", &operands, pred, "a boolean predicate", ElementType::is_pred)?;
        let ty = self.ty(on_true).clone();
        if *self.ty(on_false) != ty {
            return Err(Error::TypeMismatch { op: "select", operands: self.types(&operands[1..]) });
        }
        let p = self.dims(pred);
        if !p.is_empty() && p != &ty.dims[..] {
            return Err(self.shape_error(
                "select",
                &operands,
                "the predicate must be a scalar or have the dimensions of the branches",
            ));
        }
        self.generic("stablehlo.select", &operands, Vec::new(), ty)
    }

    /// IEEE comparison for floats and complex numbers (equality only), integer comparison by signedness.
    pub fn compare(&mut self, lhs: Value, rhs: Value, direction: Direction) -> Result<Value> {
        self.known("compare", &[lhs])?;
        let kind = match self.elem(lhs) {
            e if e.is_float() || e.is_complex() => "FLOAT",
            e if e.is_signed_int() => "SIGNED",
            _ => "UNSIGNED",
        };
        self.compare_as(lhs, rhs, direction, kind)
    }

    /// Compares floats by IEEE `totalOrder`: -NaN < -inf < -0 < +0 < inf < NaN.
    pub fn compare_total_order(&mut self, lhs: Value, rhs: Value, direction: Direction) -> Result<Value> {
        let operands = [lhs, rhs];
        self.known("compare", &operands)?;
        self.require_elem("compare", &operands, lhs, "a float type", ElementType::is_float)?;
        self.compare_as(lhs, rhs, direction, "TOTALORDER")
    }

    fn compare_as(
        &mut self,
        lhs: Value,
        rhs: Value,
        direction: Direction,
        kind: &'static str,
    ) -> Result<Value> {
        let operands = [lhs, rhs];
        self.known("compare", &operands)?;
        let ty = self.ty(lhs);
        if ty != self.ty(rhs) {
            return Err(Error::TypeMismatch { op: "compare", operands: self.types(&operands) });
        }
        if ty.elem.is_complex() && !matches!(direction, Direction::Eq | Direction::Ne) {
            let rule = "complex numbers have no order; only Eq and Ne are defined";
            return Err(self.attribute_error("compare", &operands, "direction", rule));
        }
        let ty = ty.with_elem(ElementType::Pred);
        let attrs = vec![
            ("comparison_direction", Attr::Enum("comparison_direction", direction.spelling())),
            ("compare_type", Attr::Enum("comparison_type", kind)),
        ];
        self.generic("stablehlo.compare", &operands, attrs, ty)
    }

    /// Converts the element type; a conversion to the same type is the operand itself. Float to integer
    /// truncates and is undefined out of range; anything to `Pred` is `x != 0`; complex to real drops
    /// the imaginary part.
    pub fn convert(&mut self, x: Value, elem: ElementType) -> Result<Value> {
        self.known("convert", &[x])?;
        if self.elem(x) == elem {
            return Ok(x);
        }
        let ty = self.ty(x).with_elem(elem);
        self.generic("stablehlo.convert", &[x], Vec::new(), ty)
    }

    /// Reinterprets bits. A narrower type adds a minor dimension that counts the pieces, a wider one
    /// consumes the minor dimension, which must have exactly that size.
    pub fn bitcast_convert(&mut self, x: Value, elem: ElementType) -> Result<Value> {
        const OP: &str = "bitcast_convert";
        self.known(OP, &[x])?;
        let ty = self.ty(x);
        if ty.elem == elem {
            return Ok(x);
        }
        let (from, to) = (ty.elem.size_bits() as i64, elem.size_bits() as i64);
        if ty.elem.is_complex() || elem.is_complex() {
            let rule = format!("XLA converts no complex type ({elem}); use real, imag and complex");
            return Err(self.shape_error(OP, &[x], rule));
        }
        // The specification gives Pred one bit, XLA eight; no text means the same to both.
        if ty.elem.is_pred() || elem.is_pred() {
            return Err(self.shape_error(OP, &[x], format!("i1 has no bit width to convert to {elem}")));
        }
        let mut dims = ty.dims.clone();
        if from > to {
            if from % to != 0 {
                return Err(self.shape_error(OP, &[x], format!("{from} bits are not a multiple of {to}")));
            }
            dims.push(from / to);
        } else if from < to {
            if to % from != 0 || dims.last() != Some(&(to / from)) {
                let rule = format!("the minor dimension must have size {} to give {elem}", to / from);
                return Err(self.shape_error(OP, &[x], rule));
            }
            dims.pop();
        }
        self.generic("stablehlo.bitcast_convert", &[x], Vec::new(), crate::TensorType { dims, elem })
    }

    /// Rounds to a float format of the given widths and back.
    pub fn reduce_precision(&mut self, x: Value, exponent_bits: i32, mantissa_bits: i32) -> Result<Value> {
        const OP: &str = "reduce_precision";
        self.known(OP, &[x])?;
        self.require_elem(OP, &[x], x, "a float type", ElementType::is_float)?;
        if exponent_bits < 1 || mantissa_bits < 0 {
            let rule = format!("{exponent_bits} exponent and {mantissa_bits} mantissa bits");
            return Err(self.attribute_error(OP, &[x], "exponent_bits, mantissa_bits", rule));
        }
        let attrs =
            vec![("exponent_bits", Attr::I32(exponent_bits)), ("mantissa_bits", Attr::I32(mantissa_bits))];
        let ty = self.ty(x).clone();
        self.generic("stablehlo.reduce_precision", &[x], attrs, ty)
    }
}
