use crate::ir::{Attr, Syntax};
use crate::{Builder, Dims, ElementType, GatherDimensionNumbers, Result, ScatterDimensionNumbers};
use crate::{ScatterFlags, TensorType, Value};

/// The indices of a gather or scatter, under the names that the two operations give them.
struct Indices<'a> {
    op: &'static str,
    operands: &'a [Value],
    operand: &'a TensorType,
    indices: &'a TensorType,
    index_vector_dim: i64,
    /// collapsed_slice_dims / inserted_window_dims
    collapsed: (&'static str, &'a Dims),
    operand_batching: (&'static str, &'a Dims),
    indices_batching: (&'static str, &'a Dims),
    index_map: (&'static str, &'a Dims),
}

impl Builder {
    /// Collects slices of `slice_sizes` at the positions in `indices`, which are clamped so that each
    /// slice lies inside the operand.
    pub fn gather(
        &mut self,
        operand: Value,
        indices: Value,
        dims: &GatherDimensionNumbers,
        slice_sizes: &[i64],
        indices_are_sorted: bool,
    ) -> Result<Value> {
        const OP: &str = "gather";
        let operands = [operand, indices];
        self.known(OP, &operands)?;
        let (from, index_ty) = (self.ty(operand).clone(), self.ty(indices).clone());
        self.require_elem(OP, &operands, indices, "integer indices", ElementType::is_int)?;
        self.require_len(OP, &operands, "slice_sizes", slice_sizes.len(), from.rank())?;
        self.require_indices(&Indices {
            op: OP,
            operands: &operands,
            operand: &from,
            indices: &index_ty,
            index_vector_dim: dims.index_vector_dim,
            collapsed: ("collapsed_slice_dims", &dims.collapsed_slice_dims),
            operand_batching: ("operand_batching_dims", &dims.operand_batching_dims),
            indices_batching: ("start_indices_batching_dims", &dims.start_indices_batching_dims),
            index_map: ("start_index_map", &dims.start_index_map),
        })?;
        for (i, (&size, &full)) in slice_sizes.iter().zip(&from.dims).enumerate() {
            let single = [&dims.collapsed_slice_dims, &dims.operand_batching_dims]
                .iter()
                .any(|d| d.contains(&(i as i64)));
            if size < 0 || size > full || (single && size > 1) {
                let limit = if single { full.min(1) } else { full };
                let rule = format!("{size} is outside 0..={limit} in dimension {i}");
                return Err(self.attribute_error(OP, &operands, "slice_sizes", rule));
            }
        }
        let batch = without(&index_ty.dims, &[dims.index_vector_dim]);
        let dropped: Dims =
            dims.collapsed_slice_dims.iter().chain(&dims.operand_batching_dims).copied().collect();
        let window = without(slice_sizes, &dropped);
        self.require_len(OP, &operands, "offset_dims", dims.offset_dims.len(), window.len())?;
        let rank = batch.len() + window.len();
        self.require_dims(OP, &operands, "offset_dims", &dims.offset_dims, rank)?;
        self.require_sorted(OP, &operands, "offset_dims", &dims.offset_dims)?;
        let result = interleave(rank, &dims.offset_dims, &window, &batch);
        let numbers = format!(
            "#stablehlo.gather<offset_dims = {:?}, collapsed_slice_dims = {:?}, operand_batching_dims = {:?}, \
             start_indices_batching_dims = {:?}, start_index_map = {:?}, index_vector_dim = {}>",
            dims.offset_dims,
            dims.collapsed_slice_dims,
            dims.operand_batching_dims,
            dims.start_indices_batching_dims,
            dims.start_index_map,
            dims.index_vector_dim
        );
        let attrs = vec![
            ("dimension_numbers", Attr::Text(numbers)),
            ("slice_sizes", Attr::I64Array(Dims::from_slice(slice_sizes))),
            ("indices_are_sorted", Attr::Bool(indices_are_sorted)),
        ];
        self.generic("stablehlo.gather", &operands, attrs, TensorType { dims: result, elem: from.elem })
    }

    /// The inputs with `updates` combined into the places that `indices` name. `body` gets the present
    /// elements and then the updates, all scalars. An update whose window is not wholly inside is skipped.
    #[allow(clippy::too_many_arguments)] // The specification's operands and attributes.
    pub fn scatter(
        &mut self,
        inputs: &[Value],
        indices: Value,
        updates: &[Value],
        dims: &ScatterDimensionNumbers,
        flags: ScatterFlags,
        body: impl FnOnce(&mut Builder, &[Value]) -> Result<Vec<Value>>,
    ) -> Result<Vec<Value>> {
        const OP: &str = "scatter";
        let operands: Vec<Value> = inputs.iter().chain([&indices]).chain(updates).copied().collect();
        self.known(OP, &operands)?;
        if inputs.is_empty() || inputs.len() != updates.len() {
            let rule = format!("{} inputs and {} updates", inputs.len(), updates.len());
            return Err(self.shape_error(OP, &operands, rule));
        }
        let (into, index_ty, from) =
            (self.ty(inputs[0]).clone(), self.ty(indices).clone(), self.ty(updates[0]).clone());
        self.require_elem(OP, &operands, indices, "integer indices", ElementType::is_int)?;
        for (&input, &update) in inputs.iter().zip(updates) {
            let same = self.dims(input) == &into.dims[..] && self.dims(update) == &from.dims[..];
            if !same || self.elem(input) != self.elem(update) {
                let rule = "inputs and updates must have equal dimensions among themselves, and each \
                            update its input's element type";
                return Err(self.shape_error(OP, &operands, rule));
            }
        }
        self.require_indices(&Indices {
            op: OP,
            operands: &operands,
            operand: &into,
            indices: &index_ty,
            index_vector_dim: dims.index_vector_dim,
            collapsed: ("inserted_window_dims", &dims.inserted_window_dims),
            operand_batching: ("input_batching_dims", &dims.input_batching_dims),
            indices_batching: ("scatter_indices_batching_dims", &dims.scatter_indices_batching_dims),
            index_map: ("scatter_dims_to_operand_dims", &dims.scatter_dims_to_operand_dims),
        })?;
        let name = "update_window_dims";
        self.require_dims(OP, &operands, name, &dims.update_window_dims, from.rank())?;
        self.require_sorted(OP, &operands, name, &dims.update_window_dims)?;
        let dropped: Dims =
            dims.inserted_window_dims.iter().chain(&dims.input_batching_dims).copied().collect();
        let window = without(&into.dims, &dropped);
        self.require_len(OP, &operands, name, dims.update_window_dims.len(), window.len())?;
        for (&d, &full) in dims.update_window_dims.iter().zip(&window) {
            let size = from.dims[d as usize];
            if size > full {
                let rule = format!("update dimension {d} of size {size} exceeds the input's {full}");
                return Err(self.attribute_error(OP, &operands, name, rule));
            }
        }
        let batch = without(&index_ty.dims, &[dims.index_vector_dim]);
        let scattered = without(&from.dims, &dims.update_window_dims);
        if batch != scattered {
            let rule = format!(
                "the update's dimensions outside its windows, {scattered:?}, must be those of the indices, {batch:?}"
            );
            return Err(self.shape_error(OP, &operands, rule));
        }
        let scalars: Vec<TensorType> = inputs.iter().map(|&v| TensorType::scalar(self.elem(v))).collect();
        let region = self.region(OP, true, &[scalars.clone(), scalars.clone()].concat(), body)?;
        self.require_region(OP, &operands, "body", &region, &scalars)?;
        let numbers = format!(
            "#stablehlo.scatter<update_window_dims = {:?}, inserted_window_dims = {:?}, input_batching_dims = {:?}, \
             scatter_indices_batching_dims = {:?}, scatter_dims_to_operand_dims = {:?}, index_vector_dim = {}>",
            dims.update_window_dims,
            dims.inserted_window_dims,
            dims.input_batching_dims,
            dims.scatter_indices_batching_dims,
            dims.scatter_dims_to_operand_dims,
            dims.index_vector_dim
        );
        let attrs = vec![
            ("scatter_dimension_numbers", Attr::Text(numbers)),
            ("indices_are_sorted", Attr::Bool(flags.indices_are_sorted)),
            ("unique_indices", Attr::Bool(flags.unique_indices)),
        ];
        let types = inputs.iter().map(|&v| self.ty(v).clone()).collect();
        Ok(self.push("stablehlo.scatter", Syntax::Generic, &operands, attrs, vec![region], types)?.to_vec())
    }

    /// The rules that gather and scatter share.
    fn require_indices(&self, x: &Indices) -> Result<()> {
        let (op, operands) = (x.op, x.operands);
        let (rank, indices_rank) = (x.operand.rank(), x.indices.rank());
        if x.index_vector_dim < 0 || x.index_vector_dim > indices_rank as i64 {
            let rule = format!("{} is outside 0..={indices_rank}", x.index_vector_dim);
            return Err(self.attribute_error(op, operands, "index_vector_dim", rule));
        }
        // An index_vector_dim past the end means that each index is a single number.
        let components = x.indices.dims.get(x.index_vector_dim as usize).copied().unwrap_or(1);
        self.require_len(op, operands, x.index_map.0, x.index_map.1.len(), components as usize)?;
        for (name, dims) in [x.collapsed, x.operand_batching] {
            self.require_dims(op, operands, name, dims, rank)?;
            self.require_sorted(op, operands, name, dims)?;
        }
        self.require_dims(op, operands, x.indices_batching.0, x.indices_batching.1, indices_rank)?;
        let all: Dims = x.collapsed.1.iter().chain(x.operand_batching.1).copied().collect();
        self.require_dims(op, operands, x.operand_batching.0, &all, rank)?;
        let all: Dims = x.index_map.1.iter().chain(x.operand_batching.1).copied().collect();
        self.require_dims(op, operands, x.index_map.0, &all, rank)?;
        let (name, batching) = x.indices_batching;
        self.require_len(op, operands, name, batching.len(), x.operand_batching.1.len())?;
        for (&i, &j) in x.operand_batching.1.iter().zip(batching) {
            if j == x.index_vector_dim {
                return Err(self.attribute_error(op, operands, name, "contains index_vector_dim"));
            }
            let (m, n) = (x.operand.dims[i as usize], x.indices.dims[j as usize]);
            if m != n {
                let rule = format!("operand dimension {i} has size {m}, indices dimension {j} has size {n}");
                return Err(self.attribute_error(op, operands, name, rule));
            }
        }
        Ok(())
    }

    fn require_sorted(
        &self,
        op: &'static str,
        operands: &[Value],
        name: &'static str,
        dims: &[i64],
    ) -> Result<()> {
        match dims.is_sorted() {
            true => Ok(()),
            false => Err(self.attribute_error(op, operands, name, format!("{dims:?} must be ascending"))),
        }
    }
}

/// `sizes` without the dimensions in `dropped`.
fn without(sizes: &[i64], dropped: &[i64]) -> Dims {
    (0i64..).zip(sizes).filter(|(i, _)| !dropped.contains(i)).map(|(_, &size)| size).collect()
}

/// Sizes of `window` at the positions `at` and of `batch` at the others, in order.
fn interleave(rank: usize, at: &[i64], window: &[i64], batch: &[i64]) -> Dims {
    let (mut window, mut batch) = (window.iter(), batch.iter());
    (0..rank as i64)
        .filter_map(|i| if at.contains(&i) { window.next() } else { batch.next() })
        .copied()
        .collect()
}
