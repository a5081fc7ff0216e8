//! Constants that a traced graph carries.

use stablehlo::{ElementType, TensorType};

use crate::call::{Call, Outputs};
use crate::dtype::{Category, DType};
use crate::error::LoweringError;
use crate::graph::{Arg, Number};
use crate::registry::OpDef;

type Result<T> = std::result::Result<T, LoweringError>;

/// `prims::constant(values)`: row-major numbers; dtype and sizes are those of the output's metadata.
pub const OPS: &[OpDef] = &[OpDef::new("prims::constant", constant).composite()];

fn constant(c: &mut Call<'_>) -> Result<Outputs> {
    let out = c.out(0)?.clone();
    let numbers: Vec<Number> = match c.node.args.first() {
        Some(Arg::Numbers(numbers)) => numbers.clone(),
        Some(Arg::Number(number)) => vec![*number],
        Some(Arg::Ints(values)) => values.iter().map(|v| Number::Int(*v)).collect(),
        Some(Arg::Floats(values)) => values.iter().map(|v| Number::Float(*v)).collect(),
        Some(Arg::Bools(values)) => values.iter().map(|v| Number::Bool(*v)).collect(),
        Some(Arg::Tensors(values)) if values.is_empty() => Vec::new(),
        other => {
            return Err(LoweringError::Argument { index: 0, expected: "numbers", got: format!("{other:?}") });
        }
    };
    // Narrow floats are spelled in f32, which holds them exactly, and converted.
    let stored = if out.dtype.is_reduced_float() { DType::Float32 } else { out.dtype };
    let mut bytes = Vec::with_capacity(numbers.len() * stored.size());
    for number in numbers {
        push(&mut bytes, stored, number);
    }
    let ty = TensorType::new(stored.element_type(), &out.sizes);
    let value = c.b.constant_dense(ty, &bytes)?;
    Ok(c.b.convert(value, out.dtype.element_type())?.into())
}

fn push(bytes: &mut Vec<u8>, dtype: DType, number: Number) {
    let (re, im) = match number {
        Number::Bool(v) => (f64::from(u8::from(v)), 0.0),
        Number::Int(v) => (v as f64, 0.0),
        Number::Float(v) => (v, 0.0),
        Number::Complex(re, im) => (re, im),
    };
    match dtype.category() {
        Category::Bool => bytes.push(u8::from(re != 0.0)),
        Category::Int => {
            let wide = if let Number::Int(v) = number { v } else { re as i64 };
            bytes.extend_from_slice(&wide.to_le_bytes()[..dtype.size()]);
        }
        Category::Float | Category::Complex => {
            let parts: &[f64] = if dtype.is_complex() { &[re, im] } else { &[re] };
            for part in parts {
                if dtype.real().element_type() == ElementType::F64 {
                    bytes.extend_from_slice(&part.to_le_bytes());
                } else {
                    bytes.extend_from_slice(&(*part as f32).to_le_bytes());
                }
            }
        }
    }
}
