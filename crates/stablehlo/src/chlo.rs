//! Operations of the CHLO dialect, which XLA expands itself.

use crate::elementwise::{elementwise, float_or_complex};
use crate::ir::{Attr, Syntax};
use crate::{Builder, ElementType, Error, Result, TensorType, Value};

/// Some expansions do not exist for 8-bit floats.
fn half_or_wider(e: ElementType) -> bool {
    e.is_float() && e.size_bits() >= 16
}

elementwise! { unary chlo_same_type "chlo."
    acos float_or_complex, "a float or complex type";
    acosh float_or_complex, "a float or complex type";
    asin float_or_complex, "a float or complex type";
    asinh float_or_complex, "a float or complex type";
    atan float_or_complex, "a float or complex type";
    atanh float_or_complex, "a float or complex type";
    /// Bessel function I1, scaled by exp(-|x|).
    bessel_i1e half_or_wider, "f16, bf16, f32 or f64";
    /// Complex conjugate.
    conj ElementType::is_complex, "a complex type";
    cosh float_or_complex, "a float or complex type";
    digamma ElementType::is_float, "a float type";
    erf ElementType::is_float, "a float type";
    /// Inverse of the error function.
    erf_inv ElementType::is_float, "a float type";
    erfc half_or_wider, "f16, bf16, f32 or f64";
    /// ln |gamma(x)|.
    lgamma ElementType::is_float, "a float type";
    sinh float_or_complex, "a float or complex type";
    square float_or_complex, "a float or complex type";
}

elementwise! { binary chlo_same_type "chlo."
    /// The float next to `lhs` towards `rhs`.
    next_after ElementType::is_float, "a float type";
    /// Derivative of digamma of order `lhs`, at `rhs`.
    polygamma ElementType::is_float, "a float type";
    /// Hurwitz zeta function.
    zeta ElementType::is_float, "a float type";
}

elementwise! { unary chlo_pred "chlo."
    is_inf ElementType::is_float, "a float type";
    is_neg_inf ElementType::is_float, "a float type";
    is_pos_inf ElementType::is_float, "a float type";
}

impl Builder {
    /// The `k` largest elements of the last dimension, in descending order, and their `S32` positions.
    pub fn top_k(&mut self, x: Value, k: i64) -> Result<(Value, Value)> {
        const OP: &str = "top_k";
        self.known(OP, &[x])?;
        self.require_elem(OP, &[x], x, "an integer or float type", |e| e.is_int() || e.is_float())?;
        let mut ty = self.ty(x).clone();
        match ty.dims.last_mut() {
            None => return Err(self.shape_error(OP, &[x], "the operand must have a dimension")),
            Some(size) if k < 0 || k > *size => {
                let rule = format!("{k} is outside 0..={size}");
                return Err(self.attribute_error(OP, &[x], "k", rule));
            }
            Some(size) => *size = k,
        }
        let types = vec![ty.clone(), TensorType { dims: ty.dims, elem: ElementType::S32 }];
        let attrs = vec![("k", Attr::I64(k))];
        let results = self.push("chlo.top_k", Syntax::Generic, &[x], attrs, Vec::new(), types)?;
        Ok((results[0], results[1]))
    }

    fn chlo_same_type(
        &mut self,
        name: &'static str,
        operands: &[Value],
        expected: &'static str,
        allowed: impl Fn(ElementType) -> bool,
    ) -> Result<Value> {
        let ty = self.chlo_type(name, operands, expected, allowed)?;
        self.generic(name, operands, Vec::new(), ty)
    }

    fn chlo_pred(
        &mut self,
        name: &'static str,
        operands: &[Value],
        expected: &'static str,
        allowed: impl Fn(ElementType) -> bool,
    ) -> Result<Value> {
        let ty = self.chlo_type(name, operands, expected, allowed)?.with_elem(ElementType::Pred);
        self.generic(name, operands, Vec::new(), ty)
    }

    fn chlo_type(
        &self,
        name: &'static str,
        operands: &[Value],
        expected: &'static str,
        allowed: impl Fn(ElementType) -> bool,
    ) -> Result<TensorType> {
        let op = crate::builder::short(name);
        self.known(op, operands)?;
        let ty = self.ty(operands[0]);
        if operands.iter().any(|&v| self.ty(v) != ty) {
            return Err(Error::TypeMismatch { op, operands: self.types(operands) });
        }
        self.require_elem(op, operands, operands[0], expected, allowed)?;
        Ok(ty.clone())
    }
}
