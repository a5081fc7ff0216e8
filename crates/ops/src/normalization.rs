//! Layer and group normalisation. Statistics are computed in the opmath type.

use stablehlo::Value;

use crate::call::{Call, Outputs};
use crate::error::LoweringError;
use crate::formula::{formula, formulas};
use crate::graph::Dims;
use crate::registry::OpDef;
use crate::statistics::{divide_by_count, inverse_deviation, mean, moments, spread};

type Result<T> = std::result::Result<T, LoweringError>;

pub const OPS: &[OpDef] = &[
    OpDef::new("aten::native_layer_norm", layer_norm),
    OpDef::new("aten::native_layer_norm_backward", layer_norm_backward),
    OpDef::new("aten::native_group_norm", group_norm),
    OpDef::new("aten::native_group_norm_backward", group_norm_backward),
    OpDef::new("aten::_weight_norm_interface_backward", weight_norm_backward),
];

/// The value in the dtype and dimensions of output `k`, `None` if nobody wants that output.
pub fn as_output(c: &mut Call<'_>, k: usize, value: Value) -> Result<Option<Value>> {
    let Ok(out) = c.out(k).cloned() else { return Ok(None) };
    let value = c.convert(value, out.dtype)?;
    Ok(Some(c.b.reshape(value, &out.sizes)?))
}

fn layer_norm(c: &mut Call<'_>) -> Result<Outputs> {
    let x = c.tensor(0)?;
    let (weight, bias) = (c.opt_tensor(2)?, c.opt_tensor(3)?);
    let dtype = x.dtype.opmath();
    let outer = x.rank() - c.ints(1)?.len();
    let normalized: Dims = (outer as i64..x.rank() as i64).collect();
    let value = c.value(&x, dtype)?;
    let eps = c.scalar(4, dtype)?;
    let (mut y, mean, rstd) = normalize(c, value, &normalized, eps)?;
    if let Some(weight) = weight {
        let weight = c.broadcast(&weight, dtype, &x.sizes)?;
        y = c.b.multiply(y, weight)?;
    }
    if let Some(bias) = bias {
        let bias = c.broadcast(&bias, dtype, &x.sizes)?;
        y = c.b.add(y, bias)?;
    }
    Ok([as_output(c, 0, y)?, as_output(c, 1, mean)?, as_output(c, 2, rstd)?].into())
}

/// The normalised input, its mean and its inverse standard deviation.
fn normalize(c: &mut Call<'_>, x: Value, reduced: &[i64], eps: Value) -> Result<(Value, Value, Value)> {
    let sizes = Dims::from_slice(c.b.dims(x));
    let moments = moments(c.b, x, reduced)?;
    let variance = divide_by_count(c.b, moments.squares, moments.count)?;
    let rstd = inverse_deviation(c.b, variance, eps)?;
    let scale = spread(c.b, rstd, &sizes, reduced)?;
    Ok((c.b.multiply(moments.centred, scale)?, moments.mean, rstd))
}

/// `rstd * (g - mean(g) - xhat * mean(g * xhat))`, the gradient of `xhat = (x - mean) * rstd`; `rstd` is spread.
fn normalize_backward(
    c: &mut Call<'_>,
    g: Value,
    xhat: Value,
    rstd: Value,
    reduced: &[i64],
) -> Result<Value> {
    let sizes = Dims::from_slice(c.b.dims(g));
    let g_mean = mean(c.b, g, reduced)?;
    let g_mean = spread(c.b, g_mean, &sizes, reduced)?;
    let projection = c.b.multiply(g, xhat)?;
    let projection = mean(c.b, projection, reduced)?;
    let projection = spread(c.b, projection, &sizes, reduced)?;
    formula(c.b, [g, g_mean, xhat, projection, rstd], |[g, g_mean, xhat, projection, rstd]| {
        rstd * (g - g_mean - xhat * projection)
    })
}

fn layer_norm_backward(c: &mut Call<'_>) -> Result<Outputs> {
    let (grad, x, mean, rstd) = (c.tensor(0)?, c.tensor(1)?, c.tensor(3)?, c.tensor(4)?);
    let weight = c.opt_tensor(5)?;
    let dtype = x.dtype.opmath();
    let outer = x.rank() as i64 - c.ints(2)?.len() as i64;
    let normalized: Dims = (outer..x.rank() as i64).collect();
    let outer: Dims = (0..outer).collect();
    let grad = c.value(&grad, dtype)?;
    let mean = c.broadcast(&mean, dtype, &x.sizes)?;
    let rstd = c.broadcast(&rstd, dtype, &x.sizes)?;
    let value = c.value(&x, dtype)?;
    let xhat = formula(c.b, [value, mean, rstd], |[x, mean, rstd]| (x - mean) * rstd)?;
    let mut g = grad;
    if let Some(weight) = weight {
        let weight = c.broadcast(&weight, dtype, &x.sizes)?;
        g = c.b.multiply(g, weight)?;
    }
    let input = normalize_backward(c, g, xhat, rstd, &normalized)?;
    let projection = c.b.multiply(grad, xhat)?;
    let weight = c.b.reduce_add(projection, &outer)?;
    let bias = c.b.reduce_add(grad, &outer)?;
    masked(c, [input, weight, bias])
}

/// aten::_weight_norm_interface_backward(grad, v, g, norms, dim): gradients of `v * g / norms`, the norms being those of
/// `v` over all dimensions but `dim`.
fn weight_norm_backward(c: &mut Call<'_>) -> Result<Outputs> {
    let (grad, v, g, norms) = (c.tensor(0)?, c.tensor(1)?, c.tensor(2)?, c.tensor(3)?);
    let dtype = v.dtype.opmath();
    let dim = c.dim(4, v.rank())? as i64;
    let others: Dims = (0..v.rank() as i64).filter(|&other| other != dim).collect();
    let [grad, v] = [c.value(&grad, dtype)?, c.value(&v, dtype)?];
    let sizes = Dims::from_slice(c.b.dims(v));
    let product = c.b.multiply(grad, v)?;
    let projection = c.b.reduce_add(product, &others)?;
    let kept = Dims::from_slice(c.b.dims(projection));
    let [g, norms] = [c.value(&g, dtype)?, c.value(&norms, dtype)?];
    let [g, norms] = [c.b.reshape(g, &kept)?, c.b.reshape(norms, &kept)?];
    let [scale, shift, g] = formulas(c.b, [g, norms, projection], |[g, norms, projection]| {
        [g / norms, projection / (norms * norms), projection / norms]
    })?;
    let [scale, shift] = [spread(c.b, scale, &sizes, &others)?, spread(c.b, shift, &sizes, &others)?];
    let v = formula(c.b, [grad, v, scale, shift], |[grad, v, scale, shift]| scale * (grad - v * shift))?;
    Ok([as_output(c, 0, v)?, as_output(c, 1, g)?].into())
}

/// Gradients of input, weight and bias, those that are wanted.
pub fn masked(c: &mut Call<'_>, values: [Value; 3]) -> Result<Outputs> {
    let mut outputs = Vec::with_capacity(3);
    for (k, value) in values.into_iter().enumerate() {
        outputs.push(as_output(c, k, value)?);
    }
    Ok(outputs.into())
}

/// Sizes of a group normalisation: samples, channels, elements per channel, groups.
struct Groups {
    n: i64,
    c: i64,
    spatial: i64,
    groups: i64,
}

impl Groups {
    fn parse(c: &Call<'_>, first: usize) -> Result<Self> {
        let (n, channels, spatial) = (c.int(first)?, c.int(first + 1)?, c.int(first + 2)?);
        let groups = c.int(first + 3)?;
        if groups < 1 || channels % groups != 0 {
            return Err(LoweringError::invalid(format!(
                "Expected number of channels in input to be divisible by num_groups, but got input of shape \
                 with {channels} channels and num_groups={groups}"
            )));
        }
        Ok(Self { n, c: channels, spatial, groups })
    }

    fn grouped(&self) -> [i64; 3] {
        [self.n, self.groups, self.c / self.groups * self.spatial]
    }

    fn by_channel(&self) -> [i64; 3] {
        [self.n, self.c, self.spatial]
    }
}

fn group_norm(c: &mut Call<'_>) -> Result<Outputs> {
    let x = c.tensor(0)?;
    let (weight, bias) = (c.opt_tensor(1)?, c.opt_tensor(2)?);
    let groups = Groups::parse(c, 3)?;
    let dtype = x.dtype.opmath();
    let value = c.value(&x, dtype)?;
    let value = c.b.reshape(value, &groups.grouped())?;
    let eps = c.scalar(7, dtype)?;
    let (y, mean, rstd) = normalize(c, value, &[2], eps)?;
    let mut y = c.b.reshape(y, &groups.by_channel())?;
    if let Some(weight) = weight {
        let weight = c.value(&weight, dtype)?;
        let weight = spread(c.b, weight, &groups.by_channel(), &[0, 2])?;
        y = c.b.multiply(y, weight)?;
    }
    if let Some(bias) = bias {
        let bias = c.value(&bias, dtype)?;
        let bias = spread(c.b, bias, &groups.by_channel(), &[0, 2])?;
        y = c.b.add(y, bias)?;
    }
    Ok([as_output(c, 0, y)?, as_output(c, 1, mean)?, as_output(c, 2, rstd)?].into())
}

fn group_norm_backward(c: &mut Call<'_>) -> Result<Outputs> {
    let (grad, x, mean, rstd) = (c.tensor(0)?, c.tensor(1)?, c.tensor(2)?, c.tensor(3)?);
    let weight = c.opt_tensor(4)?;
    let groups = Groups::parse(c, 5)?;
    let (grouped, by_channel) = (groups.grouped(), groups.by_channel());
    let dtype = x.dtype.opmath();
    let mut statistics = Vec::with_capacity(2);
    for tensor in [&mean, &rstd] {
        let value = c.value(tensor, dtype)?;
        let value = c.b.reshape(value, &[groups.n, groups.groups])?;
        statistics.push(spread(c.b, value, &grouped, &[2])?);
    }
    let [mean, rstd] = statistics[..] else { return Err(LoweringError::unsupported("statistics")) };
    let grad = c.value(&grad, dtype)?;
    let grad = c.b.reshape(grad, &by_channel)?;
    let value = c.value(&x, dtype)?;
    let value = c.b.reshape(value, &grouped)?;
    let xhat = formula(c.b, [value, mean, rstd], |[x, mean, rstd]| (x - mean) * rstd)?;
    let mut g = grad;
    if let Some(weight) = weight {
        let weight = c.value(&weight, dtype)?;
        let weight = spread(c.b, weight, &by_channel, &[0, 2])?;
        g = c.b.multiply(g, weight)?;
    }
    let g = c.b.reshape(g, &grouped)?;
    let input = normalize_backward(c, g, xhat, rstd, &[2])?;
    let xhat = c.b.reshape(xhat, &by_channel)?;
    let projection = c.b.multiply(grad, xhat)?;
    let weight = c.b.reduce_add(projection, &[0, 2])?;
    let bias = c.b.reduce_add(grad, &[0, 2])?;
    masked(c, [input, weight, bias])
}
