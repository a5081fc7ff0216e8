//! The operator table: one declaration per operator, in the file of its family.

use std::collections::HashMap;
use std::sync::LazyLock;

use crate::arguments::{Refusal, Strides};
use crate::bounds::Bound;
use crate::call::{Call, Outputs};
use crate::dtype::DType;
use crate::error::LoweringError;

pub type Lower = fn(&mut Call<'_>) -> Result<Outputs, LoweringError>;

/// An operator with a native lowering.
#[derive(Clone, Copy, Debug)]
pub struct OpDef {
    /// Functional overload as c10 writes it: `aten::add.Tensor`, and `aten::relu` for a default overload.
    /// Operators that exist only in-place carry their own name (`aten::fill_.Scalar`); the first output is the new
    /// value of self.
    pub name: &'static str,
    pub lower: Lower,
    /// Positions of `Scalar` arguments whose value is part of the program.
    pub attributes: &'static [usize],
    /// Positions of `Scalar` arguments that are nearly always 1 (`alpha`, `beta`): the caller passes the number itself
    /// when it is 1, so that the program has neither the operand nor the multiplication, and an operand otherwise.
    pub ones: &'static [usize],
    /// Positions of `float` arguments that the caller passes as run-time operands, like a `Scalar`: learning rates,
    /// which change from step to step.
    pub float_operands: &'static [usize],
    /// Positions of tensors that decide the memory format of the first output: it is channels-last when one of them is,
    /// where PyTorch's Meta kernel leaves that to the backend.
    pub channels_last: &'static [usize],
    /// Positions of arguments that the operator writes although its schema does not say so. Their new values are its
    /// last outputs.
    pub writes: &'static [usize],
    /// A tensor given for the output keeps its shape when it has the right number of elements, whatever the Meta kernel
    /// says.
    pub keeps_shape: bool,
    /// Whether the form with `out=` computes in that tensor's dtype, as if the call had asked for it.
    pub computes_in_out: bool,
    /// For operators whose results' sizes depend on values: the largest that they can be. The lowering gives the results
    /// at that size, what is valid first, and its extent (0-d int64).
    pub bounded: Option<Bound>,
    /// Strides of the first output, where kernels of PyTorch have others than its Meta kernel says.
    pub strides: Option<Strides>,
    /// Refuses arguments, as CPU kernels do, before Meta kernels say something else, or nothing.
    pub refusal: Option<Refusal>,
    /// When a check of its program fails, the first output is what the first argument was. Of other in-place operators
    /// the runtime makes it so, which costs a copy where the operator would update the buffer.
    pub atomic: bool,
    /// For operators that answer with one number, which Meta kernels cannot give: its dtype. The lowering gives it as a
    /// 0-d output.
    pub answer: Option<DType>,
    /// Register an explicit PrivateUse1 kernel; false for CompositeImplicit operators, which must keep decomposing.
    pub explicit: bool,
}

impl OpDef {
    pub const fn new(name: &'static str, lower: Lower) -> Self {
        Self {
            name,
            lower,
            attributes: &[],
            ones: &[],
            float_operands: &[],
            channels_last: &[],
            writes: &[],
            keeps_shape: false,
            computes_in_out: false,
            bounded: None,
            strides: None,
            refusal: None,
            atomic: false,
            answer: None,
            explicit: true,
        }
    }

    pub const fn attributes(mut self, attributes: &'static [usize]) -> Self {
        self.attributes = attributes;
        self
    }

    pub const fn ones(mut self, ones: &'static [usize]) -> Self {
        self.ones = ones;
        self
    }

    pub const fn float_operands(mut self, float_operands: &'static [usize]) -> Self {
        self.float_operands = float_operands;
        self
    }

    pub const fn channels_last(mut self, channels_last: &'static [usize]) -> Self {
        self.channels_last = channels_last;
        self
    }

    pub const fn writes(mut self, writes: &'static [usize]) -> Self {
        self.writes = writes;
        self
    }

    pub const fn computes_in_out(mut self) -> Self {
        self.computes_in_out = true;
        self
    }

    pub const fn keeps_shape(mut self) -> Self {
        self.keeps_shape = true;
        self
    }

    pub const fn bounded(mut self, bound: Bound) -> Self {
        self.bounded = Some(bound);
        self
    }

    pub const fn strides(mut self, strides: Strides) -> Self {
        self.strides = Some(strides);
        self
    }

    pub const fn refuses(mut self, refusal: Refusal) -> Self {
        self.refusal = Some(refusal);
        self
    }

    pub const fn atomic(mut self) -> Self {
        self.atomic = true;
        self
    }

    pub const fn answer(mut self, dtype: DType) -> Self {
        self.answer = Some(dtype);
        self
    }

    /// For operators that PyTorch composes by itself: used in graphs, no kernel of their own.
    pub const fn composite(mut self) -> Self {
        self.explicit = false;
        self
    }
}

/// One entry per family file.
const FAMILIES: &[&[OpDef]] = &[
    crate::activations::OPS,
    crate::antialias::OPS,
    crate::selection::OPS,
    crate::assertions::OPS,
    crate::attention::OPS,
    crate::avg_pooling::OPS,
    crate::batch_norm::OPS,
    crate::bessel::OPS,
    crate::binary::OPS,
    crate::comparison::OPS,
    crate::complex::OPS,
    crate::constants::OPS,
    crate::convolution::OPS,
    crate::copies::OPS,
    crate::creation::OPS,
    crate::ctc::OPS,
    crate::distances::OPS,
    crate::division::OPS,
    crate::embedding_bag::OPS,
    crate::fake_quantize::OPS,
    crate::foreach::OPS,
    crate::fractional_pooling::OPS,
    crate::fourier::OPS,
    crate::frexp::OPS,
    crate::grad_scaling::OPS,
    crate::grid_sampling::OPS,
    crate::grouped_matmul::OPS,
    crate::hashing::OPS,
    crate::histogram::OPS,
    crate::incomplete_gamma::OPS,
    crate::indexing::OPS,
    crate::jagged::OPS,
    crate::linalg::cholesky::OPS,
    crate::linalg::matrix_exp::OPS,
    crate::linalg::qr::OPS,
    crate::linalg::eigh::OPS,
    crate::linalg::solve::OPS,
    crate::linalg::svd::OPS,
    crate::linalg::triangular::OPS,
    crate::log_add_exp::OPS,
    crate::losses::OPS,
    crate::margin_losses::OPS,
    crate::masked::OPS,
    crate::matmul::OPS,
    crate::max_pooling::OPS,
    crate::moments::OPS,
    crate::movement::OPS,
    crate::multinomial::OPS,
    crate::nll_loss::OPS,
    crate::normalization::OPS,
    crate::optimizers::OPS,
    crate::orthogonal::OPS,
    crate::padding::OPS,
    crate::power::OPS,
    crate::prims::OPS,
    crate::recurrent::OPS,
    crate::reductions::OPS,
    crate::resampling::OPS,
    crate::rng::OPS,
    crate::scaled_matmul::OPS,
    crate::scans::OPS,
    crate::scatter::OPS,
    crate::searching::OPS,
    crate::segments::OPS,
    crate::softmax::OPS,
    crate::sorting::OPS,
    crate::special::OPS,
    crate::strided::OPS,
    crate::ternary::OPS,
    crate::unary::OPS,
    crate::unique::OPS,
    crate::view_scatter::OPS,
    crate::views::OPS,
];

static TABLE: LazyLock<HashMap<&'static str, &'static OpDef>> =
    LazyLock::new(|| all().map(|def| (def.name, def)).collect());

pub fn find(name: &str) -> Option<&'static OpDef> {
    TABLE.get(name).copied()
}

pub fn all() -> impl Iterator<Item = &'static OpDef> {
    FAMILIES.iter().flat_map(|family| family.iter())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_well_formed() {
        let mut seen = std::collections::HashSet::new();
        for def in all() {
            assert!(seen.insert(def.name), "{} is declared twice", def.name);
            assert!(def.name.starts_with("aten::") || def.name.starts_with("prims::"), "{}", def.name);
            assert!(!def.name.ends_with(".default"), "{}: a default overload has no suffix", def.name);
        }
        assert_eq!(TABLE.len(), seen.len());
    }
}
