use crate::builder::ReuseKey;
use crate::ir::Attr;
use crate::literal::{float_text, float_value, integer_range, literal_text};
use crate::{Builder, Dims, ElementType, Error, Literal, Result, TensorType, Value};
use std::fmt::Write;

/// Up to this many elements a dense constant is printed element by element, which is readable.
const SPELLED_ELEMENTS: usize = 32;

impl Builder {
    /// A scalar. A float type rounds to nearest even (beyond the largest finite value: infinity, or NaN
    /// in a format without it); an integer type or `Pred` takes only values it has.
    pub fn constant(&mut self, elem: ElementType, value: impl Into<Literal>) -> Result<Value> {
        let text = literal_text(elem, value.into())?;
        self.constant_text(TensorType::scalar(elem), format!("dense<{text}>"))
    }

    pub fn constant_f64(&mut self, elem: ElementType, value: f64) -> Result<Value> {
        self.constant(elem, value)
    }

    pub fn constant_i64(&mut self, elem: ElementType, value: i64) -> Result<Value> {
        self.constant(elem, value)
    }

    /// A scalar constant broadcast to `dims`.
    pub fn splat(&mut self, elem: ElementType, dims: &[i64], value: impl Into<Literal>) -> Result<Value> {
        let scalar = self.constant(elem, value)?;
        self.broadcast_scalar(scalar, dims)
    }

    /// Zero of any type.
    pub fn zero(&mut self, elem: ElementType) -> Result<Value> {
        self.constant(elem, 0i64)
    }

    pub fn one(&mut self, elem: ElementType) -> Result<Value> {
        self.constant(elem, 1i64)
    }

    /// The identity of `maximum`: -inf for floats, the least integer, false. Float formats without
    /// infinity give their least finite value.
    pub fn min_value(&mut self, elem: ElementType) -> Result<Value> {
        self.extreme(elem, false)
    }

    /// The identity of `minimum`: +inf for floats, the largest integer, true.
    pub fn max_value(&mut self, elem: ElementType) -> Result<Value> {
        self.extreme(elem, true)
    }

    fn extreme(&mut self, elem: ElementType, max: bool) -> Result<Value> {
        use ElementType::*;
        let sign = if max { 1.0 } else { -1.0 };
        let bound = match elem {
            F8E4M3FN => 448.0,
            F8E4M3FNUZ => 240.0,
            F8E5M2FNUZ => 57344.0,
            _ => f64::INFINITY,
        };
        match integer_range(elem) {
            Some((low, high)) if max => self
                .constant(elem, if low < 0 { Literal::I64(high as i64) } else { Literal::U64(high as u64) }),
            Some((low, _)) => self.constant(elem, low as i64),
            None if elem.is_complex() => {
                let rule = "complex numbers have no order";
                Err(Error::Constant { elem, value: "an extreme value".into(), rule })
            }
            None => self.constant(elem, sign * bound),
        }
    }

    /// A constant from the bytes of its elements in row-major order, little endian, with
    /// [`ElementType::size_bytes`] bytes each (so one byte for `Pred` and 4-bit integers).
    pub fn constant_dense(&mut self, ty: TensorType, bytes: &[u8]) -> Result<Value> {
        let size = ty.elem.size_bytes();
        let expected = ty.element_count().and_then(|n| (n as usize).checked_mul(size));
        if expected != Some(bytes.len()) {
            let value = format!("{} bytes for {ty}", bytes.len());
            return Err(Error::Constant { elem: ty.elem, value, rule: "the byte count does not match" });
        }
        let mut text = String::from("dense<");
        let count = bytes.len() / size;
        let uniform = count > 0 && bytes.chunks_exact(size).all(|e| e == &bytes[..size]);
        let packed = matches!(ty.elem, ElementType::Pred | ElementType::S4 | ElementType::U4);
        if uniform {
            element_text(&mut text, ty.elem, &bytes[..size])?;
        } else if count > SPELLED_ELEMENTS && !packed {
            text.push_str("\"0x");
            bytes.iter().for_each(|b| {
                let _ = write!(text, "{b:02X}");
            });
            text.push('"');
        } else if count > 0 {
            nested(&mut text, ty.elem, &ty.dims, bytes)?;
        }
        text.push('>');
        self.constant_text(ty, text)
    }

    /// A one-dimensional constant of 64-bit integers.
    pub fn constant_i64_array(&mut self, values: &[i64]) -> Result<Value> {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.constant_dense(TensorType::new(ElementType::S64, &[values.len() as i64]), &bytes)
    }

    /// Counts 0, 1, 2, ... along `dim`.
    pub fn iota(&mut self, ty: TensorType, dim: i64) -> Result<Value> {
        if dim < 0 || dim >= ty.rank() as i64 {
            let rank = ty.rank();
            let operands = crate::OperandTypes(vec![ty]);
            return Err(Error::Dimension { op: "iota", operands, attribute: "iota_dimension", dim, rank });
        }
        if ty.elem.is_pred() {
            let (elem, operands) = (ty.elem, crate::OperandTypes(vec![ty]));
            let expected = "an integer, float or complex type";
            return Err(Error::ElementType { op: "iota", operands, elem, expected });
        }
        let key = ReuseKey::Iota(ty.clone(), dim);
        if let Some(v) = self.reused(&key) {
            return Ok(v);
        }
        let v = self.generic("stablehlo.iota", &[], vec![("iota_dimension", Attr::I64(dim))], ty)?;
        self.remember(key, v);
        Ok(v)
    }

    /// Broadcasts a scalar to `dims`; the scalar itself if `dims` is empty.
    pub fn broadcast_scalar(&mut self, scalar: Value, dims: &[i64]) -> Result<Value> {
        self.known("broadcast_scalar", &[scalar])?;
        if self.rank(scalar) != 0 {
            return Err(self.shape_error("broadcast_scalar", &[scalar], "the operand must be a scalar"));
        }
        if dims.is_empty() {
            return Ok(scalar);
        }
        let key = ReuseKey::Broadcast(scalar, Dims::from_slice(dims));
        if let Some(v) = self.reused(&key) {
            return Ok(v);
        }
        let v = self.broadcast_in_dim(scalar, dims, &[])?;
        self.remember(key, v);
        Ok(v)
    }
}

fn nested(out: &mut String, elem: ElementType, dims: &[i64], bytes: &[u8]) -> Result<()> {
    let Some((&n, inner)) = dims.split_first() else { return element_text(out, elem, bytes) };
    out.push('[');
    for (i, part) in bytes.chunks_exact(bytes.len() / n as usize).enumerate() {
        out.push_str(if i == 0 { "" } else { ", " });
        nested(out, elem, inner, part)?;
    }
    out.push(']');
    Ok(())
}

/// One element from its little-endian bytes.
fn element_text(out: &mut String, elem: ElementType, bytes: &[u8]) -> Result<()> {
    if elem.is_complex() {
        let (re, im) = bytes.split_at(bytes.len() / 2);
        out.push('(');
        element_text(out, elem.real_part(), re)?;
        out.push_str(", ");
        element_text(out, elem.real_part(), im)?;
        out.push(')');
        return Ok(());
    }
    let bits = bytes.iter().rev().fold(0u64, |n, &b| n << 8 | b as u64);
    if float_value(elem, bits).is_some() {
        out.push_str(&float_text(elem, bits));
        return Ok(());
    }
    let literal = if elem.is_signed_int() {
        // A 4-bit integer fills its byte sign-extended, so the byte is read as it is.
        let shift = 64 - 8 * bytes.len() as u32;
        Literal::I64((bits << shift) as i64 >> shift)
    } else {
        Literal::U64(bits)
    };
    out.push_str(&literal_text(elem, literal)?);
    Ok(())
}
