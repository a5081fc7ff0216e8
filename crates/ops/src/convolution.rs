//! Convolutions of any rank, their transposes and gradients.

use stablehlo::{ConvDimensionNumbers, ConvWindow, Value};

use crate::arguments::{Arguments, require};
use crate::call::{Call, Outputs, Tensor};
use crate::dtype::DType;
use crate::error::LoweringError;
use crate::graph::{Dims, Number};
use crate::matmul::precision;
use crate::normalization::masked;
use crate::registry::OpDef;
use crate::statistics::spread;

type Result<T> = std::result::Result<T, LoweringError>;

pub const OPS: &[OpDef] = &[
    OpDef::new("aten::convolution", convolution).channels_last(&[0, 1]).refuses(refuse),
    OpDef::new("aten::convolution_backward", |c| convolution_backward(c, 4)),
    // These have no Meta kernel, and the two above are reached first.
    OpDef::new("aten::convolution_overrideable", convolution).composite(),
    OpDef::new("aten::convolution_backward_overrideable", |c| convolution_backward(c, 3)).composite(),
];

/// What ATen refuses before it looks at the input's sizes.
fn refuse(arguments: &Arguments<'_>) -> Result<()> {
    let weight = &arguments.tensor(1)?.sizes;
    let positive = |values: Dims| values.iter().all(|&value| value > 0);
    let say = |message: &'static str| move || message.to_owned();
    require(weight.len() > 2, say("weight should have at least three dimensions"))?;
    require(arguments.ints(4)?.iter().all(|&value| value >= 0), say("negative padding is not supported"))?;
    require(positive(arguments.ints(3)?), say("non-positive stride is not supported"))?;
    let dilation = arguments.ints(5)?;
    require(positive(dilation.clone()), || {
        format!("dilation should be greater than zero, but got {:?}", &dilation[..])
    })?;
    let groups = arguments.int(8)?;
    require(groups > 0, say("non-positive groups is not supported"))?;
    require(weight[0] >= groups, || {
        format!(
            "Given groups={groups}, expected weight to be at least {groups} at dimension 0, but got weight of size \
             {weight:?} instead"
        )
    })?;
    let x = &arguments.tensor(0)?.sizes;
    require(x.len() < 3 || x[0] == 0 || x[1] == 0 || !x.contains(&0), || {
        format!("Only zero batch or zero channel inputs are supported, but got input shape: {x:?}")
    })
}

/// Attributes of one convolution, one entry per spatial dimension.
struct Geometry {
    stride: Vec<i64>,
    padding: Vec<i64>,
    dilation: Vec<i64>,
    transposed: bool,
    groups: i64,
}

impl Geometry {
    /// Arguments from `first`: stride, padding, dilation, transposed, output padding (which the output's sizes
    /// show), groups.
    fn parse(c: &Call<'_>, first: usize, rank: usize) -> Result<Self> {
        let list = |index| -> Result<Vec<i64>> {
            let list = c.ints(index)?;
            match list.len() {
                1 => Ok(vec![list[0]; rank]),
                n if n == rank => Ok(list),
                n => Err(LoweringError::invalid(format!("expected {rank} spatial values, got {n}"))),
            }
        };
        Ok(Self {
            stride: list(first)?,
            padding: list(first + 1)?,
            dilation: list(first + 2)?,
            transposed: c.bool(first + 3)?,
            groups: c.int(first + 5)?,
        })
    }

    fn rank(&self) -> usize {
        self.stride.len()
    }

    /// Elements that `n` strided positions span.
    fn span(&self, dim: usize, n: i64) -> i64 {
        (n - 1) * self.stride[dim] + 1
    }

    /// The distance of a kernel's first and last element.
    fn reach(&self, dim: usize, kernel: i64) -> i64 {
        self.dilation[dim] * (kernel - 1)
    }
}

/// Operands of a convolution and the dtype of its sums.
struct Operands {
    lhs: Value,
    rhs: Value,
    dtype: DType,
}

fn operands(c: &mut Call<'_>, x: &Tensor, y: &Tensor) -> Result<Operands> {
    if x.dtype.is_bool() || x.dtype.is_complex() || x.dtype.is_barebones_unsigned() {
        return Err(LoweringError::unsupported(format!("convolution of {}", x.dtype)));
    }
    if x.dtype != y.dtype {
        return Err(LoweringError::invalid(format!(
            "Input type ({}) and weight type ({}) should be the same",
            x.dtype, y.dtype
        )));
    }
    Ok(Operands { lhs: c.value(x, x.dtype)?, rhs: c.value(y, y.dtype)?, dtype: x.dtype })
}

fn emit(
    c: &mut Call<'_>,
    operands: Operands,
    dims: &ConvDimensionNumbers,
    window: &ConvWindow,
    feature_groups: i64,
    batch_groups: i64,
) -> Result<Value> {
    let precision = precision(c, operands.dtype);
    let elem = operands.dtype.opmath().element_type();
    let Operands { lhs, rhs, .. } = operands;
    Ok(c.b.convolution(lhs, rhs, dims, window, feature_groups, batch_groups, precision, elem)?)
}

/// The cross-correlation of `[n, i, spatial]` with `[o, i / groups, spatial]`, at as many positions as `sizes`
/// says: a transposed convolution with output padding has fewer than fit.
fn forward(c: &mut Call<'_>, operands: Operands, g: &Geometry, sizes: &[i64]) -> Result<Value> {
    let (input, kernel) = (c.b.dims(operands.lhs), c.b.dims(operands.rhs));
    let padding = (0..g.rank()).map(|dim| {
        let end = g.span(dim, sizes[dim]) + g.reach(dim, kernel[dim + 2]);
        (g.padding[dim], end - input[dim + 2] - g.padding[dim])
    });
    let window = ConvWindow {
        strides: Dims::from_slice(&g.stride),
        padding: padding.collect(),
        rhs_dilation: Dims::from_slice(&g.dilation),
        ..ConvWindow::unit(g.rank())
    };
    emit(c, operands, &ConvDimensionNumbers::nchw(g.rank()), &window, g.groups, 1)
}

/// The adjoint of [`forward`] in its input, of spatial sizes `sizes`: lhs is `[n, o, spatial]`, rhs the forward
/// weight `[o, i / groups, spatial]`. Also the transposed convolution.
fn adjoint(c: &mut Call<'_>, operands: Operands, g: &Geometry, sizes: &[i64]) -> Result<Value> {
    let rank = g.rank();
    let (input, weight) =
        (Dims::from_slice(c.b.dims(operands.lhs)), Dims::from_slice(c.b.dims(operands.rhs)));
    let (inputs, outputs) = (weight[0] / g.groups, weight[1] * g.groups);
    // [groups, o / groups, i / groups, ...] -> [o / groups, groups, i / groups, ...]
    let mut kernel = operands.rhs;
    if g.groups > 1 {
        let mut split = vec![g.groups, inputs, weight[1]];
        split.extend_from_slice(&weight[2..]);
        kernel = c.b.reshape(kernel, &split)?;
        let mut order: Vec<i64> = (0..split.len() as i64).collect();
        order.swap(0, 1);
        kernel = c.b.transpose(kernel, &order)?;
        let mut merged = vec![inputs, outputs];
        merged.extend_from_slice(&weight[2..]);
        kernel = c.b.reshape(kernel, &merged)?;
    }
    let spatial: Vec<i64> = (2..2 + rank as i64).collect();
    let kernel = c.b.reverse(kernel, &spatial)?;
    let padding = (0..rank).map(|dim| {
        let reach = g.reach(dim, weight[dim + 2]);
        let low = reach - g.padding[dim];
        (low, sizes[dim] + reach - g.span(dim, input[dim + 2]) - low)
    });
    let window = ConvWindow {
        padding: padding.collect(),
        lhs_dilation: Dims::from_slice(&g.stride),
        rhs_dilation: Dims::from_slice(&g.dilation),
        ..ConvWindow::unit(rank)
    };
    let dims = ConvDimensionNumbers {
        kernel_input_feature: 0,
        kernel_output_feature: 1,
        ..ConvDimensionNumbers::nchw(rank)
    };
    emit(c, Operands { rhs: kernel, ..operands }, &dims, &window, g.groups, 1)
}

/// The gradient of [`forward`] in its weight, with kernel sizes `kernel`: lhs is the input, rhs the gradient of the
/// output. Samples are summed as features are in the forward convolution.
fn weight_gradient(c: &mut Call<'_>, operands: Operands, g: &Geometry, kernel: &[i64]) -> Result<Value> {
    let rank = g.rank();
    let (input, grad) = (Dims::from_slice(c.b.dims(operands.lhs)), Dims::from_slice(c.b.dims(operands.rhs)));
    let padding = (0..rank).map(|dim| {
        let high = g.reach(dim, kernel[dim]) + g.span(dim, grad[dim + 2]) - input[dim + 2] - g.padding[dim];
        (g.padding[dim], high)
    });
    let window = ConvWindow {
        strides: Dims::from_slice(&g.dilation),
        padding: padding.collect(),
        rhs_dilation: Dims::from_slice(&g.stride),
        ..ConvWindow::unit(rank)
    };
    let dims = ConvDimensionNumbers {
        input_batch: 1,
        input_feature: 0,
        kernel_input_feature: 0,
        kernel_output_feature: 1,
        output_batch: 1,
        output_feature: 0,
        ..ConvDimensionNumbers::nchw(rank)
    };
    emit(c, operands, &dims, &window, 1, g.groups)
}

fn convolution(c: &mut Call<'_>) -> Result<Outputs> {
    let (x, weight, bias) = (c.tensor(0)?, c.tensor(1)?, c.opt_tensor(2)?);
    let out = c.out(0)?.clone();
    let rank = x.rank().checked_sub(2).filter(|&rank| rank > 0);
    let rank = rank.ok_or_else(|| LoweringError::unsupported("convolution without spatial dimensions"))?;
    let geometry = Geometry::parse(c, 3, rank)?;
    let mut value = if x.numel() == 0 || weight.numel() == 0 || out.sizes.contains(&0) {
        c.full(Number::Int(0), out.dtype.opmath(), &out.sizes)?
    } else {
        let operands = operands(c, &x, &weight)?;
        match geometry.transposed {
            true => adjoint(c, operands, &geometry, &out.sizes[2..])?,
            false => forward(c, operands, &geometry, &out.sizes[2..])?,
        }
    };
    if let Some(bias) = bias {
        let bias = c.value(&bias, out.dtype.opmath())?;
        let others: Dims = (0..x.rank() as i64).filter(|&dim| dim != 1).collect();
        let bias = spread(c.b, bias, &out.sizes, &others)?;
        value = c.b.add(value, bias)?;
    }
    Ok(c.convert(value, out.dtype)?.into())
}

/// Arguments: gradient, input, weight, then the geometry from `first`; the mask of wanted gradients shows in the
/// outputs.
fn convolution_backward(c: &mut Call<'_>, first: usize) -> Result<Outputs> {
    let (grad, x, weight) = (c.tensor(0)?, c.tensor(1)?, c.tensor(2)?);
    let rank = x.rank().checked_sub(2).filter(|&rank| rank > 0);
    let rank = rank.ok_or_else(|| LoweringError::unsupported("convolution without spatial dimensions"))?;
    let geometry = Geometry::parse(c, first, rank)?;
    let dtype = x.dtype.opmath();
    let (dx, dw);
    if grad.numel() == 0 || x.numel() == 0 || weight.numel() == 0 {
        dx = c.full(Number::Int(0), dtype, &x.sizes)?;
        dw = c.full(Number::Int(0), dtype, &weight.sizes)?;
    } else if geometry.transposed {
        let forwards = operands(c, &grad, &weight)?;
        dx = forward(c, forwards, &geometry, &x.sizes[2..])?;
        let gradient = operands(c, &grad, &x)?;
        dw = weight_gradient(c, gradient, &geometry, &weight.sizes[2..])?;
    } else {
        let adjoints = operands(c, &grad, &weight)?;
        dx = adjoint(c, adjoints, &geometry, &x.sizes[2..])?;
        let gradient = operands(c, &x, &grad)?;
        dw = weight_gradient(c, gradient, &geometry, &weight.sizes[2..])?;
    }
    let grad = c.value(&grad, dtype)?;
    let others: Dims = (0..x.rank() as i64).filter(|&dim| dim != 1).collect();
    let db = c.b.reduce_add(grad, &others)?;
    masked(c, [dx, dw, db])
}
