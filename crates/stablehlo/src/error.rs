use crate::{ElementType, TensorType};
use std::fmt;

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The operand types of a refused operation, printed as `(tensor<2xf32>, tensor<3xf32>)`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct OperandTypes(pub Vec<TensorType>);

impl fmt::Display for OperandTypes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(")?;
        for (i, ty) in self.0.iter().enumerate() {
            write!(f, "{}{ty}", if i == 0 { "" } else { ", " })?;
        }
        f.write_str(")")
    }
}

/// Why the builder refused an operation. Every variant names the operation; those that concern
/// operands carry their types.
#[derive(thiserror::Error, Debug)]
#[non_exhaustive]
pub enum Error {
    #[error("{op}{operands}: operand types must be equal")]
    TypeMismatch { op: &'static str, operands: OperandTypes },

    #[error("{op}{operands}: element type {elem} is not allowed; expected {expected}")]
    ElementType { op: &'static str, operands: OperandTypes, elem: ElementType, expected: &'static str },

    #[error("{op}{operands}: dimension {dim} is outside 0..{rank} ({attribute})")]
    Dimension { op: &'static str, operands: OperandTypes, attribute: &'static str, dim: i64, rank: usize },

    #[error("{op}{operands}: {rule}")]
    Shape { op: &'static str, operands: OperandTypes, rule: String },

    #[error("{op}{operands}: {attribute}: {rule}")]
    Attribute { op: &'static str, operands: OperandTypes, attribute: &'static str, rule: String },

    #[error("{op}{operands}: region {region}: {rule}")]
    Region { op: &'static str, operands: OperandTypes, region: &'static str, rule: String },

    #[error("{op}: value #{value} does not belong to this builder")]
    UnknownValue { op: &'static str, value: u32 },

    #[error(
        "{op}: a value of type {ty} is used outside the region that defines it, or captured by a region that may only use its arguments and constants"
    )]
    OutOfScope { op: &'static str, ty: TensorType },

    #[error("constant: {value} is not a value of {elem}: {rule}")]
    Constant { elem: ElementType, value: String, rule: &'static str },

    #[error("tensor type {ty}: {rule}")]
    Type { ty: TensorType, rule: &'static str },

    #[error("alias of parameter {parameter} to result {result}: {rule}")]
    Alias { parameter: usize, result: usize, rule: String },

    /// An error of the caller's own, carried out of a region body.
    #[error(transparent)]
    Body(Box<dyn std::error::Error + Send + Sync>),
}

impl Error {
    /// Wraps an error that a region body met, so that it passes through the builder unchanged.
    pub fn body(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Error::Body(error.into())
    }
}
