use crate::ir::{Attr, Syntax};
use crate::{Builder, ElementType, Result, RngAlgorithm, TensorType, Value};

impl Builder {
    /// Uniform random bits of type `ty` and the next state. `state` is a `U64` vector: 2 elements for
    /// `ThreeFry`, 2 or 3 for `Philox`.
    pub fn rng_bit_generator(
        &mut self,
        state: Value,
        algorithm: RngAlgorithm,
        ty: TensorType,
    ) -> Result<(Value, Value)> {
        const OP: &str = "rng_bit_generator";
        self.known(OP, &[state])?;
        let state_ty = self.ty(state).clone();
        let sizes: &[i64] = match algorithm {
            RngAlgorithm::ThreeFry => &[2],
            RngAlgorithm::Philox | RngAlgorithm::Default => &[2, 3],
        };
        if state_ty.elem != ElementType::U64 || state_ty.rank() != 1 || !sizes.contains(&state_ty.dims[0]) {
            let rule = format!("the state must be a ui64 vector of size {sizes:?}");
            return Err(self.shape_error(OP, &[state], rule));
        }
        if !(ty.elem.is_int() || ty.elem.is_float()) {
            let rule = format!("{ty} must have an integer or float element type");
            return Err(self.attribute_error(OP, &[state], "result", rule));
        }
        let attrs = vec![("rng_algorithm", Attr::Enum("rng_algorithm", algorithm.spelling()))];
        let types = vec![state_ty, ty];
        let name = "stablehlo.rng_bit_generator";
        let results = self.push(name, Syntax::Generic, &[state], attrs, Vec::new(), types)?;
        Ok((results[0], results[1]))
    }
}
