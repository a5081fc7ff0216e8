use crate::ir::Attr;
use crate::{Builder, Dims, ElementType, Error, Result, TensorType, Value};

fn array(dims: &[i64]) -> Attr {
    Attr::I64Array(Dims::from_slice(dims))
}

impl Builder {
    /// The same elements in row-major order under other dimensions; the operand if they are its own.
    pub fn reshape(&mut self, x: Value, dims: &[i64]) -> Result<Value> {
        self.known("reshape", &[x])?;
        let from = self.ty(x);
        let to = TensorType::new(from.elem, dims);
        if from.dims == to.dims {
            return Ok(x);
        }
        if to.element_count().is_none() || from.element_count() != to.element_count() {
            return Err(self.shape_error("reshape", &[x], format!("{to} has another number of elements")));
        }
        self.generic("stablehlo.reshape", &[x], Vec::new(), to)
    }

    /// Dimension i of the result is dimension `permutation[i]` of the operand.
    pub fn transpose(&mut self, x: Value, permutation: &[i64]) -> Result<Value> {
        const OP: &str = "transpose";
        self.known(OP, &[x])?;
        self.require_len(OP, &[x], "permutation", permutation.len(), self.rank(x))?;
        self.require_dims(OP, &[x], "permutation", permutation, self.rank(x))?;
        if permutation.iter().enumerate().all(|(i, &p)| i as i64 == p) {
            return Ok(x);
        }
        let from = self.ty(x);
        let dims = permutation.iter().map(|&p| from.dims[p as usize]).collect();
        let ty = TensorType { dims, elem: from.elem };
        self.generic("stablehlo.transpose", &[x], vec![("permutation", array(permutation))], ty)
    }

    /// Operand dimension i becomes result dimension `map[i]`; it has that size or is 1.
    pub fn broadcast_in_dim(&mut self, x: Value, dims: &[i64], map: &[i64]) -> Result<Value> {
        const OP: &str = "broadcast_in_dim";
        self.known(OP, &[x])?;
        self.require_len(OP, &[x], "broadcast_dimensions", map.len(), self.rank(x))?;
        self.require_dims(OP, &[x], "broadcast_dimensions", map, dims.len())?;
        for (i, (&size, &to)) in self.dims(x).iter().zip(map).enumerate() {
            let target = dims[to as usize];
            if size != 1 && size != target {
                let rule = format!("dimension {i} of size {size} cannot become dimension {to} of {dims:?}");
                return Err(self.shape_error(OP, &[x], rule));
            }
        }
        if self.dims(x) == dims && map.iter().enumerate().all(|(i, &d)| i as i64 == d) {
            return Ok(x);
        }
        let ty = TensorType::new(self.elem(x), dims);
        self.generic("stablehlo.broadcast_in_dim", &[x], vec![("broadcast_dimensions", array(map))], ty)
    }

    /// Elements `starts, starts + strides, ...` below `limits`; the operand if that is all of it.
    pub fn slice(&mut self, x: Value, starts: &[i64], limits: &[i64], strides: &[i64]) -> Result<Value> {
        const OP: &str = "slice";
        self.known(OP, &[x])?;
        let from = self.ty(x).clone();
        let parts = [("start_indices", starts), ("limit_indices", limits), ("strides", strides)];
        for (name, values) in parts {
            self.require_len(OP, &[x], name, values.len(), from.rank())?;
        }
        let mut dims = Dims::new();
        for (i, &size) in from.dims.iter().enumerate() {
            let (start, limit, stride) = (starts[i], limits[i], strides[i]);
            if start < 0 || limit < start || limit > size || stride < 1 {
                let rule =
                    format!("[{start}:{limit}:{stride}] is not a slice of dimension {i} of size {size}");
                return Err(self.shape_error(OP, &[x], rule));
            }
            dims.push((limit - start).div_ceil_positive(stride));
        }
        if dims == from.dims {
            return Ok(x);
        }
        let attrs = parts.map(|(name, values)| (name, array(values))).to_vec();
        self.generic("stablehlo.slice", &[x], attrs, TensorType { dims, elem: from.elem })
    }

    /// A slice of `sizes` at run-time starts, which are clamped so that it lies inside.
    pub fn dynamic_slice(&mut self, x: Value, starts: &[Value], sizes: &[i64]) -> Result<Value> {
        const OP: &str = "dynamic_slice";
        let operands: Vec<Value> = [x].into_iter().chain(starts.iter().copied()).collect();
        self.require_starts(OP, &operands, x, starts)?;
        self.require_len(OP, &operands, "slice_sizes", sizes.len(), self.rank(x))?;
        for (i, (&size, &full)) in sizes.iter().zip(self.dims(x)).enumerate() {
            if size < 0 || size > full {
                let rule = format!("{size} is outside 0..={full} in dimension {i}");
                return Err(self.attribute_error(OP, &operands, "slice_sizes", rule));
            }
        }
        // XLA refuses the operation on a scalar.
        if self.rank(x) == 0 {
            return Ok(x);
        }
        let ty = TensorType::new(self.elem(x), sizes);
        self.generic("stablehlo.dynamic_slice", &operands, vec![("slice_sizes", array(sizes))], ty)
    }

    /// `x` with `update` written at run-time starts, which are clamped so that it lies inside.
    pub fn dynamic_update_slice(&mut self, x: Value, update: Value, starts: &[Value]) -> Result<Value> {
        const OP: &str = "dynamic_update_slice";
        let operands: Vec<Value> = [x, update].into_iter().chain(starts.iter().copied()).collect();
        self.require_starts(OP, &operands, x, starts)?;
        let (into, from) = (self.ty(x), self.ty(update));
        let fits = from.dims.iter().zip(&into.dims).all(|(u, d)| u <= d);
        if from.elem != into.elem || from.rank() != into.rank() || !fits {
            let rule = "the update must have the element type and rank of the operand and fit inside it";
            return Err(self.shape_error(OP, &operands, rule));
        }
        if into.rank() == 0 {
            return Ok(update);
        }
        let ty = into.clone();
        self.generic("stablehlo.dynamic_update_slice", &operands, Vec::new(), ty)
    }

    fn require_starts(&self, op: &'static str, operands: &[Value], x: Value, starts: &[Value]) -> Result<()> {
        self.known(op, operands)?;
        self.require_len(op, operands, "start_indices", starts.len(), self.rank(x))?;
        for &s in starts {
            self.require_elem(op, operands, s, "integer starts", ElementType::is_int)?;
            if self.ty(s) != self.ty(starts[0]) || self.rank(s) != 0 {
                let rule = "the starts must be scalars of one integer type";
                return Err(self.shape_error(op, operands, rule));
            }
        }
        Ok(())
    }

    /// Pads with `value` before, after and between the elements. Negative `low` and `high` remove.
    pub fn pad(
        &mut self,
        x: Value,
        value: Value,
        low: &[i64],
        high: &[i64],
        interior: &[i64],
    ) -> Result<Value> {
        const OP: &str = "pad";
        let operands = [x, value];
        self.known(OP, &operands)?;
        let from = self.ty(x).clone();
        if *self.ty(value) != TensorType::scalar(from.elem) {
            let rule = format!("the padding value must be a scalar of type {}", from.elem);
            return Err(self.shape_error(OP, &operands, rule));
        }
        let parts = [("edge_padding_low", low), ("edge_padding_high", high), ("interior_padding", interior)];
        for (name, values) in parts {
            self.require_len(OP, &operands, name, values.len(), from.rank())?;
        }
        let mut dims = Dims::new();
        for (i, &size) in from.dims.iter().enumerate() {
            if interior[i] < 0 {
                let rule = format!("{} in dimension {i} is negative", interior[i]);
                return Err(self.attribute_error(OP, &operands, "interior_padding", rule));
            }
            let new = (size - 1)
                .max(0)
                .checked_mul(interior[i])
                .and_then(|gaps| gaps.checked_add(size)?.checked_add(low[i])?.checked_add(high[i]));
            match new {
                Some(new) if new >= 0 => dims.push(new),
                _ => {
                    let rule = format!("dimension {i} of size {size} gets no valid size");
                    return Err(self.shape_error(OP, &operands, rule));
                }
            }
        }
        if dims == from.dims && low.iter().all(|&l| l == 0) && interior.iter().all(|&n| n == 0) {
            return Ok(x);
        }
        let attrs = parts.map(|(name, values)| (name, array(values))).to_vec();
        self.generic("stablehlo.pad", &operands, attrs, TensorType { dims, elem: from.elem })
    }

    /// Joins tensors that agree in every dimension but `dim`.
    pub fn concatenate(&mut self, inputs: &[Value], dim: i64) -> Result<Value> {
        const OP: &str = "concatenate";
        self.known(OP, inputs)?;
        let Some(&first) = inputs.first() else {
            return Err(self.shape_error(OP, inputs, "there must be an input"));
        };
        let mut ty = self.ty(first).clone();
        self.require_dims(OP, inputs, "dimension", &[dim], ty.rank())?;
        let d = dim as usize;
        for &v in &inputs[1..] {
            let other = self.ty(v);
            let agree = other.elem == ty.elem
                && other.rank() == ty.rank()
                && (0..ty.rank()).all(|i| i == d || other.dims[i] == ty.dims[i]);
            if !agree {
                let rule = format!("the inputs must agree in everything but dimension {dim}");
                return Err(self.shape_error(OP, inputs, rule));
            }
            ty.dims[d] = ty.dims[d].checked_add(other.dims[d]).ok_or_else(|| Error::Type {
                ty: other.clone(),
                rule: "the concatenated dimension exceeds 64 bits",
            })?;
        }
        if inputs.len() == 1 {
            return Ok(first);
        }
        self.generic("stablehlo.concatenate", inputs, vec![("dimension", Attr::I64(dim))], ty)
    }

    pub fn reverse(&mut self, x: Value, dims: &[i64]) -> Result<Value> {
        self.known("reverse", &[x])?;
        self.require_dims("reverse", &[x], "dimensions", dims, self.rank(x))?;
        if dims.is_empty() {
            return Ok(x);
        }
        let ty = self.ty(x).clone();
        self.generic("stablehlo.reverse", &[x], vec![("dimensions", array(dims))], ty)
    }
}

trait CeilDiv {
    fn div_ceil_positive(self, divisor: i64) -> i64;
}

impl CeilDiv for i64 {
    /// Of a non-negative number by a positive one; cannot overflow.
    fn div_ceil_positive(self, divisor: i64) -> i64 {
        self / divisor + (self % divisor != 0) as i64
    }
}
