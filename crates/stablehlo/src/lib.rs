//! Builds StableHLO modules and prints them as MLIR text, the program format `mlir` of PJRT.
//!
//! Every method of [`Builder`] checks its operands against the StableHLO specification and infers
//! its result types, so a mistake in a lowering is reported here, with the operand types, rather
//! than by the compiler. No MLIR library is linked.
//!
//! ```
//! use stablehlo::{Builder, ElementType, TensorType};
//! let mut b = Builder::new("axpy");
//! let ty = TensorType::new(ElementType::F32, &[4]);
//! let (a, x, y) = (b.parameter(TensorType::scalar(ElementType::F32)), b.parameter(ty.clone()), b.parameter(ty));
//! let a = b.broadcast_scalar(a, &[4])?;
//! let ax = b.multiply(a, x)?;
//! let sum = b.add(ax, y)?;
//! let module = b.finish(&[sum])?;
//! assert!(module.text().contains("stablehlo.add"));
//! # Ok::<(), stablehlo::Error>(())
//! ```

mod attributes;
mod builder;
mod chlo;
mod constants;
mod control_flow;
mod convolution;
mod custom_call;
mod elementwise;
mod error;
mod gather_scatter;
mod ir;
mod linalg;
mod literal;
mod module;
mod printer;
mod reduce;
mod rng;
mod shape;
mod types;
mod verifier;

pub use attributes::*;
pub use builder::Builder;
pub use control_flow::Branch;
pub use custom_call::BackendConfig;
pub use error::{Error, OperandTypes, Result};
pub use ir::Value;
pub use literal::Literal;
pub use module::Module;
pub use types::{Dims, ElementType, TensorType};
pub use verifier::{VerifyError, verify};
