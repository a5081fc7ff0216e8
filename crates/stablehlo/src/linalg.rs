use crate::ir::Attr;
use crate::{Builder, Dims, DotDimensionNumbers, ElementType, FftType, Precision, Result, TensorType};
use crate::{Transpose, Value};

pub(crate) fn precision_config(precision: Precision) -> Attr {
    let one = format!("#stablehlo<precision {}>", precision.spelling());
    Attr::Text(format!("[{one}, {one}]"))
}

impl Builder {
    /// Contracts and batches dimensions of two tensors; the result has the batching dimensions, then
    /// the rest of `lhs`, then the rest of `rhs`. `elem` is the result's element type, in which XLA
    /// also accumulates: `F32` for a product of `BF16` tensors, for example.
    pub fn dot_general(
        &mut self,
        lhs: Value,
        rhs: Value,
        dims: &DotDimensionNumbers,
        precision: Precision,
        elem: ElementType,
    ) -> Result<Value> {
        const OP: &str = "dot_general";
        let operands = [lhs, rhs];
        self.known(OP, &operands)?;
        let (l, r) = (self.ty(lhs).clone(), self.ty(rhs).clone());
        let both = [
            (lhs, l.rank(), "lhs batching and contracting", [&dims.lhs_batching, &dims.lhs_contracting]),
            (rhs, r.rank(), "rhs batching and contracting", [&dims.rhs_batching, &dims.rhs_contracting]),
        ];
        for (_, rank, name, [batching, contracting]) in both {
            let all: Dims = batching.iter().chain(contracting).copied().collect();
            self.require_dims(OP, &operands, name, &all, rank)?;
        }
        let pairs = [
            ("batching_dimensions", &dims.lhs_batching, &dims.rhs_batching),
            ("contracting_dimensions", &dims.lhs_contracting, &dims.rhs_contracting),
        ];
        for (name, a, b) in pairs {
            self.require_len(OP, &operands, name, b.len(), a.len())?;
            for (&i, &j) in a.iter().zip(b) {
                let (m, n) = (l.dims[i as usize], r.dims[j as usize]);
                if m != n {
                    let rule = format!("lhs dimension {i} has size {m}, rhs dimension {j} has size {n}");
                    return Err(self.attribute_error(OP, &operands, name, rule));
                }
            }
        }
        let kinds = |e: ElementType| (e.is_pred(), e.is_int(), e.is_float(), e.is_complex());
        if kinds(l.elem) != kinds(r.elem) || kinds(l.elem) != kinds(elem) {
            let rule =
                format!("operands and result ({elem}) must all be integers, floats or complex numbers");
            return Err(self.shape_error(OP, &operands, rule));
        }
        let rest = |ty: &TensorType, batching: &Dims, contracting: &Dims| -> Dims {
            (0i64..)
                .zip(&ty.dims)
                .filter(|(i, _)| !batching.contains(i) && !contracting.contains(i))
                .map(|(_, &size)| size)
                .collect()
        };
        let mut result: Dims = dims.lhs_batching.iter().map(|&i| l.dims[i as usize]).collect();
        result.extend(rest(&l, &dims.lhs_batching, &dims.lhs_contracting));
        result.extend(rest(&r, &dims.rhs_batching, &dims.rhs_contracting));
        let numbers = format!(
            "#stablehlo.dot<lhs_batching_dimensions = {:?}, rhs_batching_dimensions = {:?}, \
             lhs_contracting_dimensions = {:?}, rhs_contracting_dimensions = {:?}>",
            dims.lhs_batching, dims.rhs_batching, dims.lhs_contracting, dims.rhs_contracting
        );
        let attrs = vec![
            ("dot_dimension_numbers", Attr::Text(numbers)),
            ("precision_config", precision_config(precision)),
        ];
        self.generic("stablehlo.dot_general", &operands, attrs, TensorType { dims: result, elem })
    }

    /// Matrix product of the last two dimensions over equal leading batch dimensions.
    pub fn matmul(&mut self, lhs: Value, rhs: Value, precision: Precision) -> Result<Value> {
        self.known("matmul", &[lhs, rhs])?;
        let (l, r) = (self.rank(lhs) as i64, self.rank(rhs) as i64);
        if l < 2 || l != r {
            return Err(self.shape_error("matmul", &[lhs, rhs], "the ranks must be equal and at least 2"));
        }
        let batch: Dims = (0..l - 2).collect();
        let dims = DotDimensionNumbers::new(&batch, &batch, &[l - 1], &[l - 2]);
        self.dot_general(lhs, rhs, &dims, precision, self.elem(lhs))
    }

    /// Fourier transform over the last `length.len()` (1 to 3) dimensions.
    pub fn fft(&mut self, x: Value, kind: FftType, length: &[i64]) -> Result<Value> {
        const OP: &str = "fft";
        self.known(OP, &[x])?;
        let ty = self.ty(x).clone();
        let (rank, n) = (ty.rank(), length.len());
        if !(1..=3).contains(&n) || n > rank {
            return Err(self.attribute_error(OP, &[x], "fft_length", format!("has {n} entries")));
        }
        let mut dims = ty.dims.clone();
        let last = length[n - 1];
        let elem = match kind {
            FftType::Fft | FftType::Ifft => {
                self.require_elem(OP, &[x], x, "a complex type", ElementType::is_complex)?;
                Some(ty.elem)
            }
            FftType::Rfft => {
                self.require_elem(OP, &[x], x, "f32 or f64", |e| e.to_complex().is_some())?;
                ty.elem.to_complex()
            }
            FftType::Irfft => {
                self.require_elem(OP, &[x], x, "a complex type", ElementType::is_complex)?;
                Some(ty.elem.real_part())
            }
        };
        let mut expected = dims[rank - n..].to_vec();
        match kind {
            FftType::Fft | FftType::Ifft => {}
            FftType::Rfft => dims[rank - 1] = if last == 0 { 0 } else { last / 2 + 1 },
            FftType::Irfft => {
                let want = if last == 0 { 0 } else { last / 2 + 1 };
                if dims[rank - 1] == want {
                    expected[n - 1] = last;
                }
                dims[rank - 1] = last;
            }
        }
        if expected != length {
            let rule = format!("{length:?} does not match the operand's last dimensions");
            return Err(self.attribute_error(OP, &[x], "fft_length", rule));
        }
        let attrs = vec![
            ("fft_type", Attr::Enum("fft_type", kind.spelling())),
            ("fft_length", Attr::I64Array(Dims::from_slice(length))),
        ];
        self.generic("stablehlo.fft", &[x], attrs, TensorType { dims, elem: elem.unwrap_or(ty.elem) })
    }

    /// Cholesky factor of the last two dimensions; the other triangle of the result is undefined.
    pub fn cholesky(&mut self, x: Value, lower: bool) -> Result<Value> {
        const OP: &str = "cholesky";
        self.known(OP, &[x])?;
        self.require_square(OP, &[x], x)?;
        let ty = self.ty(x).clone();
        self.generic("stablehlo.cholesky", &[x], vec![("lower", Attr::Bool(lower))], ty)
    }

    /// Solves `op(a) x = b`, or `x op(a) = b` if not `left_side`, for triangular `a`.
    pub fn triangular_solve(
        &mut self,
        a: Value,
        b: Value,
        left_side: bool,
        lower: bool,
        unit_diagonal: bool,
        transpose_a: Transpose,
    ) -> Result<Value> {
        const OP: &str = "triangular_solve";
        let operands = [a, b];
        self.known(OP, &operands)?;
        self.require_square(OP, &operands, a)?;
        let (at, bt) = (self.ty(a).clone(), self.ty(b).clone());
        let rank = at.rank();
        let side = if left_side { 2 } else { 1 };
        let fits = at.elem == bt.elem
            && bt.rank() == rank
            && at.dims[..rank - 2] == bt.dims[..rank - 2]
            && bt.dims[rank - side] == at.dims[rank - 1];
        if !fits {
            let rule = "a and b must agree in element type, batch dimensions and the solved dimension";
            return Err(self.shape_error(OP, &operands, rule));
        }
        let attrs = vec![
            ("left_side", Attr::Bool(left_side)),
            ("lower", Attr::Bool(lower)),
            ("unit_diagonal", Attr::Bool(unit_diagonal)),
            ("transpose_a", Attr::Enum("transpose", transpose_a.spelling())),
        ];
        self.generic("stablehlo.triangular_solve", &operands, attrs, bt)
    }

    fn require_square(&self, op: &'static str, operands: &[Value], x: Value) -> Result<()> {
        self.require_elem(op, operands, x, "a float or complex type", |e| e.is_float() || e.is_complex())?;
        match self.dims(x) {
            [.., m, n] if m == n => Ok(()),
            _ => Err(self.shape_error(op, operands, "the last two dimensions must be equal")),
        }
    }
}
