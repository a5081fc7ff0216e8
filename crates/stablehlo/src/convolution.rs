use crate::ir::Attr;
use crate::reduce::windowed;
use crate::{
    Builder, ConvDimensionNumbers, ConvWindow, Dims, ElementType, Precision, Result, TensorType, Value,
};

impl Builder {
    /// Convolution (cross-correlation, unless the window is reversed). At most one of the group counts
    /// may exceed 1. `elem` is the result's element type.
    #[allow(clippy::too_many_arguments)] // The specification's operands and attributes.
    pub fn convolution(
        &mut self,
        lhs: Value,
        rhs: Value,
        dims: &ConvDimensionNumbers,
        window: &ConvWindow,
        feature_group_count: i64,
        batch_group_count: i64,
        precision: Precision,
        elem: ElementType,
    ) -> Result<Value> {
        const OP: &str = "convolution";
        let operands = [lhs, rhs];
        self.known(OP, &operands)?;
        let (l, r) = (self.ty(lhs).clone(), self.ty(rhs).clone());
        let rank = l.rank();
        if rank < 2 || r.rank() != rank {
            return Err(self.shape_error(OP, &operands, "the ranks must be equal and at least 2"));
        }
        let layouts = [
            ("input dimensions", dims.input_batch, dims.input_feature, &dims.input_spatial),
            (
                "kernel dimensions",
                dims.kernel_input_feature,
                dims.kernel_output_feature,
                &dims.kernel_spatial,
            ),
            ("output dimensions", dims.output_batch, dims.output_feature, &dims.output_spatial),
        ];
        for (name, a, b, spatial) in layouts {
            let all: Dims = [a, b].into_iter().chain(spatial.iter().copied()).collect();
            self.require_len(OP, &operands, name, all.len(), rank)?;
            self.require_dims(OP, &operands, name, &all, rank)?;
        }
        for (name, len) in [
            ("window_strides", window.strides.len()),
            ("padding", window.padding.len()),
            ("lhs_dilation", window.lhs_dilation.len()),
            ("rhs_dilation", window.rhs_dilation.len()),
            ("window_reversal", window.reversal.len()),
        ] {
            self.require_len(OP, &operands, name, len, rank - 2)?;
        }
        let group_error = |rule: String| Err(self.attribute_error(OP, &operands, "group counts", rule));
        if feature_group_count < 1 || batch_group_count < 1 {
            return group_error("must be positive".into());
        }
        if feature_group_count > 1 && batch_group_count > 1 {
            return group_error("only one may exceed 1".into());
        }
        let (batch, features) = (l.dims[dims.input_batch as usize], l.dims[dims.input_feature as usize]);
        let in_features = r.dims[dims.kernel_input_feature as usize];
        let out_features = r.dims[dims.kernel_output_feature as usize];
        if in_features.checked_mul(feature_group_count) != Some(features) {
            return group_error(format!(
                "{features} input features are not {feature_group_count} groups of the kernel's {in_features}"
            ));
        }
        if out_features % feature_group_count != 0 || out_features % batch_group_count != 0 {
            return group_error(format!("{out_features} output features do not divide into the groups"));
        }
        if batch % batch_group_count != 0 {
            return group_error(format!(
                "a batch of {batch} does not divide into {batch_group_count} groups"
            ));
        }
        let kinds = |e: ElementType| (e.is_int(), e.is_float(), e.is_complex());
        if kinds(l.elem) != kinds(r.elem) || kinds(l.elem) != kinds(elem) || l.elem.is_pred() {
            let rule =
                format!("operands and result ({elem}) must all be integers, floats or complex numbers");
            return Err(self.shape_error(OP, &operands, rule));
        }
        let mut result = Dims::from_elem(0, rank);
        result[dims.output_batch as usize] = batch / batch_group_count;
        result[dims.output_feature as usize] = out_features;
        for i in 0..rank - 2 {
            let size = l.dims[dims.input_spatial[i] as usize];
            let kernel = r.dims[dims.kernel_spatial[i] as usize];
            let (stride, padding) = (window.strides[i], window.padding[i]);
            let (ld, rd) = (window.lhs_dilation[i], window.rhs_dilation[i]);
            // A kernel of size 0 is legal and has one position more than the padded input.
            let new = windowed(size, ld, padding, kernel.max(1), rd, stride);
            let Some(new) = new else {
                let rule = format!(
                    "spatial dimension {i} of size {size}: kernel {kernel}, stride {stride}, dilations {ld} \
                     and {rd}, padding {padding:?} (strides and dilations must be positive, and the padded \
                     size not negative)"
                );
                return Err(self.attribute_error(OP, &operands, "window", rule));
            };
            if kernel == 0 {
                return Err(self.shape_error(OP, &operands, "a kernel dimension of size 0 is not supported"));
            }
            result[dims.output_spatial[i] as usize] = new;
        }
        let attrs = vec![
            ("window_strides", Attr::I64Array(window.strides.clone())),
            ("padding", Attr::Pairs(window.padding.clone())),
            ("lhs_dilation", Attr::I64Array(window.lhs_dilation.clone())),
            ("rhs_dilation", Attr::I64Array(window.rhs_dilation.clone())),
            ("window_reversal", Attr::BoolArray(window.reversal.clone())),
            ("dimension_numbers", Attr::Text(dimension_numbers(dims))),
            ("feature_group_count", Attr::I64(feature_group_count)),
            ("batch_group_count", Attr::I64(batch_group_count)),
            ("precision_config", crate::linalg::precision_config(precision)),
        ];
        self.generic("stablehlo.convolution", &operands, attrs, TensorType { dims: result, elem })
    }
}

/// `[b, f, 0, 1]x[o, i, 0, 1]->[b, f, 0, 1]`: what each dimension is, in order.
fn dimension_numbers(dims: &ConvDimensionNumbers) -> String {
    let layout = |named: [(&str, i64); 2], spatial: &Dims| {
        let rank = spatial.len() + 2;
        let mut names = vec![String::new(); rank];
        for (name, dim) in named {
            names[dim as usize] = name.to_string();
        }
        for (i, &dim) in spatial.iter().enumerate() {
            names[dim as usize] = i.to_string();
        }
        format!("[{}]", names.join(", "))
    };
    let input = layout([("b", dims.input_batch), ("f", dims.input_feature)], &dims.input_spatial);
    let kernel =
        layout([("i", dims.kernel_input_feature), ("o", dims.kernel_output_feature)], &dims.kernel_spatial);
    let output = layout([("b", dims.output_batch), ("f", dims.output_feature)], &dims.output_spatial);
    format!("#stablehlo.conv<{input}x{kernel}->{output}>")
}
