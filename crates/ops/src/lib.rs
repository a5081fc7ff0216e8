//! What each ATen operator means: one table, one lowering per operator, from a graph of operators to StableHLO.

mod batch_norm;
mod binary;
mod call;
mod comparison;
mod convert;
mod convolution;
mod division;
mod dtype;
mod elementwise;
mod error;
mod formula;
mod graph;
mod lowering;
mod matmul;
mod movement;
mod normalization;
mod promote;
mod registry;
mod softmax;
mod special;
mod statistics;
mod unary;
mod views;

pub use call::{Call, Outputs, RngState, Tensor};
pub use dtype::{Category, DType};
pub use error::{CheckKind, LoweringError};
pub use graph::{Arg, Dims, Graph, Input, InputKind, Node, Number, TensorMeta, ValueRef};
pub use lowering::{Check, HostParam, Lowered, Modes, Precision, Rng, lower_graph};
pub use promote::{Participant, promote_types, result_type};
pub use registry::{OpDef, all, find};
