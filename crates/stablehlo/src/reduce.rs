use crate::ir::{Attr, Region, Syntax};
use crate::{Builder, Dims, ElementType, Result, TensorType, Value, WindowDims};

/// Size of one dimension after dilation, padding and windowing; `None` if a number is out of range.
pub(crate) fn windowed(
    size: i64,
    base_dilation: i64,
    (low, high): (i64, i64),
    window: i64,
    window_dilation: i64,
    stride: i64,
) -> Option<i64> {
    if base_dilation < 1 || window_dilation < 1 || stride < 1 || window < 1 {
        return None;
    }
    let dilate = |n: i64, by: i64| if n == 0 { Some(0) } else { (n - 1).checked_mul(by)?.checked_add(1) };
    let padded = dilate(size, base_dilation)?.checked_add(low)?.checked_add(high)?;
    let window = dilate(window, window_dilation)?;
    if padded < 0 {
        return None;
    }
    Some(if padded == 0 || window > padded { 0 } else { (padded - window) / stride + 1 })
}

macro_rules! reduce_shorthand {
    ($($(#[$doc:meta])* $name:ident $init:ident $op:ident;)+) => {
        impl Builder {
            $($(#[$doc])* pub fn $name(&mut self, x: Value, dims: &[i64]) -> Result<Value> {
                self.known(stringify!($name), &[x])?;
                let init = self.$init(self.elem(x))?;
                let results = self.reduce(&[x], &[init], dims, |b, args| Ok(vec![b.$op(args[0], args[1])?]))?;
                Ok(results[0])
            })+
        }
    };
}

reduce_shorthand! {
    /// Sum over `dims`; for `Pred` logical or.
    reduce_add zero add;
    /// Product over `dims`; for `Pred` logical and.
    reduce_mul one multiply;
    /// Maximum over `dims`, NaN if there is one; -inf or the least integer over nothing.
    reduce_max min_value maximum;
    reduce_min max_value minimum;
    /// All of `dims` for `Pred`, bitwise for integers.
    reduce_and all_ones and;
    /// Any of `dims` for `Pred`, bitwise for integers.
    reduce_or zero or;
}

impl Builder {
    /// The identity of `and`.
    fn all_ones(&mut self, elem: ElementType) -> Result<Value> {
        if elem.is_signed_int() { self.constant(elem, -1i64) } else { self.max_value(elem) }
    }

    /// Folds `inputs` over `dims`. `body` gets the accumulators and then the elements, all scalars,
    /// and returns one value per input; it must be associative, and `inits` its identities.
    pub fn reduce(
        &mut self,
        inputs: &[Value],
        inits: &[Value],
        dims: &[i64],
        body: impl FnOnce(&mut Builder, &[Value]) -> Result<Vec<Value>>,
    ) -> Result<Vec<Value>> {
        const OP: &str = "reduce";
        let operands = self.require_inputs_and_inits(OP, inputs, inits)?;
        self.require_dims(OP, &operands, "dimensions", dims, self.rank(inputs[0]))?;
        let kept: Dims = (0i64..)
            .zip(self.dims(inputs[0]))
            .filter(|(i, _)| !dims.contains(i))
            .map(|(_, &size)| size)
            .collect();
        let region = self.fold_region(OP, &operands, inits, body)?;
        let types = inits.iter().map(|&v| TensorType { dims: kept.clone(), elem: self.elem(v) }).collect();
        // The order of the dimensions has no meaning; one spelling serves the cache.
        let mut dims = Dims::from_slice(dims);
        dims.sort_unstable();
        let attrs = vec![("dimensions", Attr::I64Array(dims))];
        let results =
            self.push("stablehlo.reduce", Syntax::Generic, &operands, attrs, vec![region], types)?;
        Ok(results.to_vec())
    }

    /// Folds `inputs` over the windows of `window`; `body` as in [`Builder::reduce`].
    pub fn reduce_window(
        &mut self,
        inputs: &[Value],
        inits: &[Value],
        window: &WindowDims,
        body: impl FnOnce(&mut Builder, &[Value]) -> Result<Vec<Value>>,
    ) -> Result<Vec<Value>> {
        const OP: &str = "reduce_window";
        let operands = self.require_inputs_and_inits(OP, inputs, inits)?;
        let dims = self.window_result(OP, &operands, inputs[0], window)?;
        let region = self.fold_region(OP, &operands, inits, body)?;
        let types = inits.iter().map(|&v| TensorType { dims: dims.clone(), elem: self.elem(v) }).collect();
        let attrs = vec![
            ("window_dimensions", Attr::I64Array(window.dims.clone())),
            ("window_strides", Attr::I64Array(window.strides.clone())),
            ("base_dilations", Attr::I64Array(window.base_dilations.clone())),
            ("window_dilations", Attr::I64Array(window.window_dilations.clone())),
            ("padding", Attr::Pairs(window.padding.clone())),
        ];
        let name = "stablehlo.reduce_window";
        Ok(self.push(name, Syntax::Generic, &operands, attrs, vec![region], types)?.to_vec())
    }

    /// Adds each element of `source` (by `scatter`) to the element that `select` picks in its window:
    /// the gradient of max pooling. `select(a, b)` is true where `a` is to stay picked. Dilations of
    /// `window` must be 1.
    pub fn select_and_scatter(
        &mut self,
        x: Value,
        source: Value,
        init: Value,
        window: &WindowDims,
        select: impl FnOnce(&mut Builder, &[Value]) -> Result<Value>,
        scatter: impl FnOnce(&mut Builder, &[Value]) -> Result<Value>,
    ) -> Result<Value> {
        const OP: &str = "select_and_scatter";
        let operands = [x, source, init];
        self.known(OP, &operands)?;
        if window.base_dilations.iter().chain(&window.window_dilations).any(|&d| d != 1) {
            return Err(self.attribute_error(OP, &operands, "dilations", "must be 1"));
        }
        let dims = self.window_result(OP, &operands, x, window)?;
        let ty = self.ty(x).clone();
        let expected = TensorType { dims, elem: ty.elem };
        if *self.ty(source) != expected {
            return Err(self.shape_error(OP, &operands, format!("the source must have type {expected}")));
        }
        let scalar = TensorType::scalar(ty.elem);
        if *self.ty(init) != scalar {
            return Err(self.shape_error(
                OP,
                &operands,
                format!("the initial value must have type {scalar}"),
            ));
        }
        let arguments = [scalar.clone(), scalar.clone()];
        let selected = self.region(OP, true, &arguments, |b, args| Ok(vec![select(b, args)?]))?;
        let pred = [TensorType::scalar(ElementType::Pred)];
        self.require_region(OP, &operands, "select", &selected, &pred)?;
        let scattered = self.region(OP, true, &arguments, |b, args| Ok(vec![scatter(b, args)?]))?;
        self.require_region(OP, &operands, "scatter", &scattered, &[scalar])?;
        let attrs = vec![
            ("window_dimensions", Attr::I64Array(window.dims.clone())),
            ("window_strides", Attr::I64Array(window.strides.clone())),
            ("padding", Attr::Pairs(window.padding.clone())),
        ];
        let regions = vec![selected, scattered];
        let name = "stablehlo.select_and_scatter";
        Ok(self.push(name, Syntax::Generic, &operands, attrs, regions, vec![ty])?[0])
    }

    /// Sorts along `dim`, all inputs by one order. `less` gets a pair of scalars of each input
    /// (`a0, b0, a1, b1, ...`) and says whether the `a` come before the `b`.
    pub fn sort(
        &mut self,
        inputs: &[Value],
        dim: i64,
        stable: bool,
        less: impl FnOnce(&mut Builder, &[Value]) -> Result<Value>,
    ) -> Result<Vec<Value>> {
        const OP: &str = "sort";
        self.known(OP, inputs)?;
        let Some(&first) = inputs.first() else {
            return Err(self.shape_error(OP, inputs, "there must be an input"));
        };
        if inputs.iter().any(|&v| self.dims(v) != self.dims(first)) {
            return Err(self.shape_error(OP, inputs, "the inputs must have the same dimensions"));
        }
        self.require_dims(OP, inputs, "dimension", &[dim], self.rank(first))?;
        let arguments: Vec<TensorType> = inputs
            .iter()
            .map(|&v| TensorType::scalar(self.elem(v)))
            .flat_map(|ty| [ty.clone(), ty])
            .collect();
        let region = self.region(OP, true, &arguments, |b, args| Ok(vec![less(b, args)?]))?;
        let pred = [TensorType::scalar(ElementType::Pred)];
        self.require_region(OP, inputs, "comparator", &region, &pred)?;
        let types = inputs.iter().map(|&v| self.ty(v).clone()).collect();
        let attrs = vec![("dimension", Attr::I64(dim)), ("is_stable", Attr::Bool(stable))];
        Ok(self.push("stablehlo.sort", Syntax::Generic, inputs, attrs, vec![region], types)?.to_vec())
    }

    fn require_inputs_and_inits(
        &self,
        op: &'static str,
        inputs: &[Value],
        inits: &[Value],
    ) -> Result<Vec<Value>> {
        let operands: Vec<Value> = inputs.iter().chain(inits).copied().collect();
        self.known(op, &operands)?;
        if inputs.is_empty() || inputs.len() != inits.len() {
            let rule = format!("{} inputs and {} initial values", inputs.len(), inits.len());
            return Err(self.shape_error(op, &operands, rule));
        }
        for (&input, &init) in inputs.iter().zip(inits) {
            if self.dims(input) != self.dims(inputs[0]) {
                return Err(self.shape_error(op, &operands, "the inputs must have the same dimensions"));
            }
            if *self.ty(init) != TensorType::scalar(self.elem(input)) {
                let rule = "an initial value must be a scalar of its input's element type";
                return Err(self.shape_error(op, &operands, rule));
            }
        }
        Ok(operands)
    }

    fn fold_region(
        &mut self,
        op: &'static str,
        operands: &[Value],
        inits: &[Value],
        body: impl FnOnce(&mut Builder, &[Value]) -> Result<Vec<Value>>,
    ) -> Result<Region> {
        let scalars: Vec<TensorType> = inits.iter().map(|&v| self.ty(v).clone()).collect();
        let arguments = [scalars.clone(), scalars.clone()].concat();
        let region = self.region(op, true, &arguments, body)?;
        self.require_region(op, operands, "body", &region, &scalars)?;
        Ok(region)
    }

    fn window_result(
        &self,
        op: &'static str,
        operands: &[Value],
        x: Value,
        window: &WindowDims,
    ) -> Result<Dims> {
        let rank = self.rank(x);
        for (name, len) in [
            ("window_dimensions", window.dims.len()),
            ("window_strides", window.strides.len()),
            ("base_dilations", window.base_dilations.len()),
            ("window_dilations", window.window_dilations.len()),
            ("padding", window.padding.len()),
        ] {
            self.require_len(op, operands, name, len, rank)?;
        }
        (0..rank)
            .map(|i| {
                let size = self.dims(x)[i];
                windowed(
                    size,
                    window.base_dilations[i],
                    window.padding[i],
                    window.dims[i],
                    window.window_dilations[i],
                    window.strides[i],
                )
                .ok_or_else(|| {
                    let rule = format!(
                        "dimension {i} of size {size}: window {}, stride {}, dilations {} and {}, padding {:?} \
                         (sizes, strides and dilations must be positive, and the padded size not negative)",
                        window.dims[i],
                        window.strides[i],
                        window.base_dilations[i],
                        window.window_dilations[i],
                        window.padding[i]
                    );
                    self.attribute_error(op, operands, "window", rule)
                })
            })
            .collect()
    }

    /// The region returns values of exactly the types `expected`.
    pub(crate) fn require_region(
        &self,
        op: &'static str,
        operands: &[Value],
        name: &'static str,
        region: &Region,
        expected: &[TensorType],
    ) -> Result<()> {
        let returned = self.types(&region.results);
        if returned.0 == expected {
            return Ok(());
        }
        let rule = format!("returns {returned}, expected {}", crate::OperandTypes(expected.to_vec()));
        Err(crate::Error::Region { op, operands: self.types(operands), region: name, rule })
    }
}
