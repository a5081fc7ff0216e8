//! Interpolation with antialiasing: where an image shrinks, an output element is the mean of all input elements that
//! the filter, widened by the scale, reaches. Weights are known from the sizes, as with Pillow.

use std::f64::consts::PI;

use stablehlo::{Builder, TensorType, Value};

use crate::byte_images::{Weights, interpolate};
use crate::call::{Call, Outputs};
use crate::convert;
use crate::dtype::DType;
use crate::error::LoweringError;
use crate::graph::{Dims, Number};
use crate::indices::take;
use crate::registry::OpDef;

type Result<T> = std::result::Result<T, LoweringError>;

pub const OPS: &[OpDef] = &[
    OpDef::new("aten::_upsample_bilinear2d_aa", |c| forward(c, &LINEAR)),
    OpDef::new("aten::_upsample_bilinear2d_aa_backward", |c| backward(c, &LINEAR)),
    OpDef::new("aten::_upsample_bicubic2d_aa", |c| forward(c, &CUBIC)),
    OpDef::new("aten::_upsample_bicubic2d_aa_backward", |c| backward(c, &CUBIC)),
    OpDef::new("aten::_upsample_lanczos2d_aa", |c| forward(c, &LANCZOS)),
    OpDef::new("aten::_upsample_lanczos2d_aa_backward", |c| backward(c, &LANCZOS)),
];

struct Filter {
    /// How far it reaches to each side.
    radius: f64,
    weight: fn(f64) -> f64,
}

const LINEAR: Filter = Filter { radius: 1.0, weight: |x| (1.0 - x.abs()).max(0.0) };
/// Keys' kernel with a = -0.5, not the -0.75 of interpolation without antialiasing.
const CUBIC: Filter = Filter {
    radius: 2.0,
    weight: |x| {
        const A: f64 = -0.5;
        match x.abs() {
            x if x < 1.0 => ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0,
            x if x < 2.0 => (((x - 5.0) * x + 8.0) * x - 4.0) * A,
            _ => 0.0,
        }
    },
};
const LANCZOS: Filter = Filter {
    radius: 3.0,
    weight: |x| {
        let sinc = |x: f64| if x == 0.0 { 1.0 } else { (x * PI).sin() / (x * PI) };
        if (-3.0..3.0).contains(&x) { sinc(x) * sinc(x / 3.0) } else { 0.0 }
    },
};

/// A matrix whose rows have their weights next to each other; starts and ends of the rows ascend.
#[derive(Debug, PartialEq)]
pub struct Band {
    pub columns: i64,
    pub starts: Vec<i64>,
    pub weights: Vec<Vec<f64>>,
}

impl Band {
    /// `round` is the precision in which CPU finds centres and weights: that of the type it computes in.
    fn new(
        filter: &Filter,
        (input, output): (i64, i64),
        align_corners: bool,
        scale: Option<f64>,
        round: fn(f64) -> f64,
    ) -> Self {
        let scale = round(match (align_corners, scale) {
            (true, _) if output > 1 => (input - 1) as f64 / (output - 1) as f64,
            (true, _) => 0.0,
            (false, Some(scale)) if scale > 0.0 => 1.0 / scale,
            (false, _) => input as f64 / output as f64,
        });
        let support = round(filter.radius * scale.max(1.0));
        let narrowing = if scale >= 1.0 { round(1.0 / scale) } else { 1.0 };
        let (mut starts, mut weights) = (Vec::new(), Vec::new());
        for i in 0..output {
            let center = round(scale * (i as f64 + 0.5));
            let start = ((round(center - support) + 0.5) as i64).max(0);
            let end = ((round(center + support) + 0.5) as i64).min(input);
            let raw = |place: i64| {
                let x = round((round(place as f64 - center) + 0.5) * narrowing);
                round((filter.weight)(x))
            };
            let row: Vec<f64> = (start..end).map(raw).collect();
            let total = row.iter().fold(0.0, |sum, w| round(sum + w));
            weights.push(row.into_iter().map(|w| if total == 0.0 { w } else { round(w / total) }).collect());
            starts.push(start.min(input - 1));
        }
        Self { columns: input, starts, weights }
    }

    fn transposed(&self) -> Self {
        let rows = self.starts.len() as i64;
        let mut transposed =
            Self { columns: rows, starts: vec![0; self.columns as usize], weights: Vec::new() };
        transposed.weights.resize_with(self.columns as usize, Vec::new);
        for (row, (start, weights)) in (0..).zip(self.starts.iter().zip(&self.weights)) {
            for (column, &weight) in (*start..).zip(weights) {
                let (start, into) =
                    (&mut transposed.starts[column as usize], &mut transposed.weights[column as usize]);
                if into.is_empty() {
                    *start = row;
                }
                into.resize((row - *start) as usize, 0.0);
                into.push(weight);
            }
        }
        transposed
    }

    /// The product with `x` along `dim`.
    pub fn apply(&self, b: &mut Builder, x: Value, dim: usize) -> Result<Value> {
        let rows = self.starts.len() as i64;
        let width = self.weights.iter().map(Vec::len).max().unwrap_or(0).max(1) as i64;
        let (mut places, mut weights) = (Vec::new(), Vec::new());
        for (start, row) in self.starts.iter().zip(&self.weights) {
            for k in 0..width {
                places.extend_from_slice(&((start + k).min(self.columns - 1) as i32).to_le_bytes());
                let weight = row.get(k as usize).copied().unwrap_or(0.0);
                match convert::dtype_of(b, x)? {
                    DType::Float64 => weights.extend_from_slice(&weight.to_le_bytes()),
                    DType::Int32 => weights.extend_from_slice(&(weight as i32).to_le_bytes()),
                    _ => weights.extend_from_slice(&(weight as f32).to_le_bytes()),
                }
            }
        }
        let ty = |elem| TensorType::new(elem, &[rows, width]);
        let places = b.constant_dense(ty(DType::Int32.element_type()), &places)?;
        let weights = b.constant_dense(ty(b.elem(x)), &weights)?;
        let taken = take(b, x, dim, places)?;
        let sizes = Dims::from_slice(b.dims(taken));
        let spread =
            |b: &mut Builder, value| b.broadcast_in_dim(value, &sizes, &[dim as i64, dim as i64 + 1]);
        let spread_weights = spread(b, weights)?;
        let product = b.multiply(taken, spread_weights)?;
        // Outside of a row's reach even an infinite element has no part.
        let zero = convert::splat(b, weights, Number::Int(0))?;
        let used = b.compare(weights, zero, stablehlo::Direction::Ne)?;
        let used = spread(b, used)?;
        let zero = convert::splat(b, product, Number::Int(0))?;
        let product = b.select(used, product, zero)?;
        Ok(b.reduce_add(product, &[dim as i64 + 1])?)
    }
}

/// Arguments from `first`: align_corners, scales of rows and columns.
fn bands(c: &Call<'_>, filter: &Filter, first: usize, inputs: &[i64], outputs: &[i64]) -> Result<Vec<Band>> {
    let align_corners = c.bool(first)?;
    let round: fn(f64) -> f64 = match c.out(0)?.dtype {
        DType::Float64 | DType::UInt8 => |x| x,
        _ => |x| f64::from(x as f32),
    };
    (0..2)
        .map(|dim| {
            let scale = c.opt_float(first + 1 + dim)?;
            Ok(Band::new(filter, (inputs[dim + 2], outputs[dim + 2]), align_corners, scale, round))
        })
        .collect()
}

/// The image [N, C, H, W] in the type to compute in.
fn image(c: &mut Call<'_>) -> Result<Value> {
    let x = c.tensor(0)?;
    if !(x.dtype.is_float() || x.dtype == DType::UInt8) || x.rank() != 4 {
        return Err(LoweringError::unsupported(format!("interpolation of {} with antialiasing", x.dtype)));
    }
    c.value(&x, x.dtype.opmath())
}

/// aten::_upsample_*_aa(self, output_size, align_corners, scales_h, scales_w)
fn forward(c: &mut Call<'_>, filter: &Filter) -> Result<Outputs> {
    let out = c.out(0)?.clone();
    let value = image(c)?;
    let inputs = Dims::from_slice(c.b.dims(value));
    // CPU leaves a dimension alone whose size stays, whatever the scale.
    let bands = bands(c, filter, 2, &inputs, &out.sizes)?
        .into_iter()
        .enumerate()
        .map(|(dim, band)| (inputs[dim + 2] != out.sizes[dim + 2]).then_some(band));
    if out.dtype == DType::UInt8 && !out.sizes.contains(&0) {
        let axes: Vec<_> = bands.map(|band| band.map(Weights::of)).collect();
        return Ok(interpolate(c.b, value, &axes)?.into());
    }
    let bands: Vec<_> = bands.collect();
    apply(c, value, &bands)
}

/// aten::_upsample_*_aa_backward(grad, output_size, input_size, align_corners, scales_h, scales_w)
fn backward(c: &mut Call<'_>, filter: &Filter) -> Result<Outputs> {
    let out = c.out(0)?.clone();
    if !out.dtype.is_float() {
        return Err(LoweringError::unsupported(format!("gradients of {}", out.dtype)));
    }
    let value = image(c)?;
    let outputs = Dims::from_slice(c.b.dims(value));
    let bands = bands(c, filter, 3, &out.sizes, &outputs)?;
    let bands: Vec<_> = bands.iter().map(|band| Some(band.transposed())).collect();
    apply(c, value, &bands)
}

fn apply(c: &mut Call<'_>, mut value: Value, bands: &[Option<Band>]) -> Result<Outputs> {
    let out = c.out(0)?.clone();
    if out.sizes.contains(&0) {
        return Ok(c.full(Number::Int(0), out.dtype, &out.sizes)?.into());
    }
    for (dim, band) in (2..).zip(bands) {
        if let Some(band) = band {
            value = band.apply(c.b, value, dim)?;
        }
    }
    Ok(c.convert(value, out.dtype)?.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_band_is_transposed() {
        let band = Band { columns: 3, starts: vec![0, 1], weights: vec![vec![1.0, 2.0], vec![3.0, 4.0]] };
        let transposed = band.transposed();
        assert_eq!(transposed.starts, [0, 0, 1]);
        assert_eq!(transposed.weights, [vec![1.0], vec![2.0, 3.0], vec![4.0]]);
        assert_eq!(transposed.transposed(), band);
    }

    #[test]
    fn weights_of_a_row_add_up_to_one() {
        for filter in [&LINEAR, &CUBIC, &LANCZOS] {
            for (input, output) in [(7, 3), (3, 7), (5, 5), (1, 4), (9, 1)] {
                for row in Band::new(filter, (input, output), false, None, |x| x).weights {
                    assert!((row.iter().sum::<f64>() - 1.0).abs() < 1e-12);
                }
            }
        }
    }
}
