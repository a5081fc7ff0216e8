//! Interpolation to another spatial size, one dimension after the other: an output element is a weighted sum of a
//! few input elements, whose places and weights are known from the sizes.

use stablehlo::{Builder, TensorType, Value};

use crate::byte_images::{self, Weights};
use crate::call::{Call, Outputs};
use crate::dtype::DType;
use crate::error::LoweringError;
use crate::graph::Dims;
use crate::indices::take;
use crate::registry::OpDef;
use crate::statistics::spread;
use crate::windows::Segments;

type Result<T> = std::result::Result<T, LoweringError>;

macro_rules! modes {
    ($($rank:literal $forward:literal $backward:literal $mode:ident;)+) => {
        pub const OPS: &[OpDef] = &[
            $(
                OpDef::new(concat!("aten::", $forward), |c| forward(c, $rank, Mode::$mode)),
                OpDef::new(concat!("aten::", $backward), |c| backward(c, $rank, Mode::$mode)),
            )+
        ];
    };
}

modes! {
    1 "upsample_nearest1d" "upsample_nearest1d_backward" Nearest;
    2 "upsample_nearest2d" "upsample_nearest2d_backward" Nearest;
    3 "upsample_nearest3d" "upsample_nearest3d_backward" Nearest;
    1 "_upsample_nearest_exact1d" "_upsample_nearest_exact1d_backward" NearestExact;
    2 "_upsample_nearest_exact2d" "_upsample_nearest_exact2d_backward" NearestExact;
    3 "_upsample_nearest_exact3d" "_upsample_nearest_exact3d_backward" NearestExact;
    1 "upsample_linear1d" "upsample_linear1d_backward" Linear;
    2 "upsample_bilinear2d" "upsample_bilinear2d_backward" Linear;
    3 "upsample_trilinear3d" "upsample_trilinear3d_backward" Linear;
    2 "upsample_bicubic2d" "upsample_bicubic2d_backward" Cubic;
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mode {
    Nearest,
    NearestExact,
    Linear,
    Cubic,
}

impl Mode {
    fn is_nearest(self) -> bool {
        matches!(self, Mode::Nearest | Mode::NearestExact)
    }
}

/// One input element for each output element, and its weight. The places ascend.
struct Tap {
    places: Vec<i64>,
    weights: Vec<f64>,
}

/// One dimension of an interpolation.
struct Axis {
    input: i64,
    output: i64,
    align_corners: bool,
    scale: Option<f64>,
    /// CPU finds places in double precision for f64 tensors and weights of bytes, in single precision otherwise.
    double: bool,
}

impl Axis {
    /// A step of CPU's arithmetic on places.
    fn round(&self, x: f64) -> f64 {
        if self.double { x } else { f64::from(x as f32) }
    }

    /// Input elements per output element.
    fn step(&self) -> f64 {
        if self.align_corners {
            return match self.output {
                ..=1 => 0.0,
                output => self.round((self.input - 1) as f64 / (output - 1) as f64),
            };
        }
        match self.scale {
            Some(scale) if scale > 0.0 => self.round(1.0 / scale),
            _ => self.round(self.input as f64 / self.output as f64),
        }
    }

    fn source(&self, step: f64, i: i64) -> f64 {
        let i = i as f64;
        match self.align_corners {
            true => self.round(step * i),
            false => self.round(self.round(step * (i + 0.5)) - 0.5),
        }
    }

    fn taps(&self, mode: Mode) -> Vec<Tap> {
        let step = self.step();
        let last = self.input - 1;
        let ones = vec![1.0; self.output as usize];
        let places = |f: &dyn Fn(i64) -> i64| (0..self.output).map(f).collect::<Vec<i64>>();
        match mode {
            Mode::Nearest => {
                let places = places(&|i| (self.round(i as f64 * step).floor() as i64).min(last));
                vec![Tap { places, weights: ones }]
            }
            Mode::NearestExact => {
                let places = places(&|i| (self.round((i as f64 + 0.5) * step).floor() as i64).min(last));
                vec![Tap { places, weights: ones }]
            }
            Mode::Linear => {
                let source = |i| self.source(step, i).max(0.0);
                let first = |i| (source(i).floor() as i64).min(last);
                let upper = |i| (source(i) - first(i) as f64).clamp(0.0, 1.0);
                let weights = |f: &dyn Fn(i64) -> f64| (0..self.output).map(f).collect::<Vec<f64>>();
                vec![
                    Tap { places: places(&first), weights: weights(&|i| 1.0 - upper(i)) },
                    Tap { places: places(&|i| (first(i) + 1).min(last)), weights: weights(&upper) },
                ]
            }
            Mode::Cubic => (-1..=2)
                .map(|offset| {
                    let source = |i| self.source(step, i);
                    let weight = |i| cubic(source(i) - source(i).floor() - offset as f64);
                    Tap {
                        places: places(&|i| (source(i).floor() as i64 + offset).clamp(0, last)),
                        weights: (0..self.output).map(weight).collect(),
                    }
                })
                .collect(),
        }
    }

    /// The weights of an image of bytes, for which the sources are found in double precision.
    fn of_bytes(&self, mode: Mode) -> byte_images::Axis {
        if self.input == self.output {
            return None;
        }
        let step = self.step();
        let sources = (0..self.output).map(|i| self.source(step, i));
        Some(match mode {
            Mode::Cubic => Weights::interpolating(self.input, &sources.collect::<Vec<_>>(), 2, cubic),
            _ => {
                let sources: Vec<_> = sources.map(|source| source.max(0.0)).collect();
                Weights::interpolating(self.input, &sources, 1, |x| (1.0 - x.abs()).max(0.0))
            }
        })
    }

    fn is_identity(&self, mode: Mode) -> bool {
        // CPU ignores the scale where the size stays; bicubic has no such rule but weights of 1 and 0.
        self.input == self.output && (mode != Mode::Cubic || self.scale.is_none_or(|scale| scale == 1.0))
    }
}

/// The cubic convolution kernel with a = -0.75 (Keys 1981) at distance `x`.
fn cubic(x: f64) -> f64 {
    const A: f64 = -0.75;
    let x = x.abs();
    match x {
        ..=1.0 => ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0,
        ..2.0 => ((A * x - 5.0 * A) * x + 8.0 * A) * x - 4.0 * A,
        _ => 0.0,
    }
}

/// The axes of an interpolation between images of sizes `inputs` and `outputs`; arguments from `first`:
/// align_corners (not for nearest modes), then a scale per dimension.
fn axes(
    c: &Call<'_>,
    first: usize,
    mode: Mode,
    dtype: DType,
    inputs: &[i64],
    outputs: &[i64],
) -> Result<Vec<Axis>> {
    let (align_corners, first) = if mode.is_nearest() { (false, first) } else { (c.bool(first)?, first + 1) };
    let rank = inputs.len() - 2;
    let mut axes = Vec::with_capacity(rank);
    for dim in 0..rank {
        axes.push(Axis {
            input: inputs[dim + 2],
            output: outputs[dim + 2],
            align_corners,
            scale: c.opt_float(first + dim)?,
            double: dtype == DType::Float64 || (dtype == DType::UInt8 && !mode.is_nearest()),
        });
    }
    Ok(axes)
}

fn operand(c: &Call<'_>, rank: usize, mode: Mode) -> Result<crate::call::Tensor> {
    let x = c.tensor(0)?;
    if x.rank() != rank + 2 {
        return Err(LoweringError::invalid(format!(
            "expected a tensor of {} dimensions, got {}",
            rank + 2,
            x.rank()
        )));
    }
    let bytes = x.dtype == DType::UInt8 && (mode.is_nearest() || rank == 2);
    let supported = x.dtype.is_float() || bytes;
    if !supported {
        return Err(LoweringError::unsupported(format!("interpolation of {}", x.dtype)));
    }
    Ok(x)
}

fn places(b: &mut Builder, places: &[i64]) -> Result<Value> {
    let bytes: Vec<u8> = places.iter().flat_map(|&place| (place as i32).to_le_bytes()).collect();
    Ok(b.constant_dense(TensorType::new(DType::Int32.element_type(), &[places.len() as i64]), &bytes)?)
}

/// A tap's weights along `dim` of `x`, times `x`; nothing to do where all are 1.
fn weigh(b: &mut Builder, x: Value, weights: &[f64], dim: usize) -> Result<Value> {
    if weights.iter().all(|&weight| weight == 1.0) {
        return Ok(x);
    }
    let elem = b.elem(x);
    let bytes: Vec<u8> = match elem {
        stablehlo::ElementType::F64 => weights.iter().flat_map(|w| w.to_le_bytes()).collect(),
        _ => weights.iter().flat_map(|&w| (w as f32).to_le_bytes()).collect(),
    };
    let weights = b.constant_dense(TensorType::new(elem, &[weights.len() as i64]), &bytes)?;
    let sizes = Dims::from_slice(b.dims(x));
    let others: Dims = (0..sizes.len() as i64).filter(|&d| d != dim as i64).collect();
    let weights = spread(b, weights, &sizes, &others)?;
    Ok(b.multiply(x, weights)?)
}

fn add(b: &mut Builder, sum: Option<Value>, term: Value) -> Result<Option<Value>> {
    Ok(Some(match sum {
        Some(sum) => b.add(sum, term)?,
        None => term,
    }))
}

/// Every element `times` times in a row along `dim`.
fn repeat(b: &mut Builder, x: Value, dim: usize, times: i64) -> Result<Value> {
    let mut sizes = Dims::from_slice(b.dims(x));
    let mut wide = sizes.clone();
    wide.insert(dim + 1, times);
    let kept: Dims = (0..wide.len() as i64).filter(|&d| d != dim as i64 + 1).collect();
    let x = b.broadcast_in_dim(x, &wide, &kept)?;
    sizes[dim] *= times;
    Ok(b.reshape(x, &sizes)?)
}

fn forward(c: &mut Call<'_>, rank: usize, mode: Mode) -> Result<Outputs> {
    let x = operand(c, rank, mode)?;
    let out = c.out(0)?.clone();
    let axes = axes(c, 2, mode, x.dtype, &x.sizes, &out.sizes)?;
    if x.dtype == DType::UInt8 && !mode.is_nearest() && !out.sizes.contains(&0) {
        let image = c.value(&x, x.dtype)?;
        let axes: Vec<_> = axes.iter().map(|axis| axis.of_bytes(mode)).collect();
        return Ok(byte_images::interpolate(c.b, image, &axes)?.into());
    }
    let mut value = c.value(&x, if mode.is_nearest() { x.dtype } else { x.dtype.opmath() })?;
    for (dim, axis) in (2..).zip(&axes) {
        if axis.is_identity(mode) {
            continue;
        }
        let mut sum = None;
        for tap in axis.taps(mode) {
            let times = axis.output / axis.input.max(1);
            let repeats = axis.input * times == axis.output
                && tap.places.iter().enumerate().all(|(i, &place)| place == i as i64 / times);
            let taken = if repeats {
                repeat(c.b, value, dim, times)?
            } else {
                let index = places(c.b, &tap.places)?;
                take(c.b, value, dim, index)?
            };
            let taken = weigh(c.b, taken, &tap.weights, dim)?;
            sum = add(c.b, sum, taken)?;
        }
        value = sum.unwrap_or(value);
    }
    Ok(c.convert(value, out.dtype)?.into())
}

/// Arguments: gradient, output sizes, input sizes, then those of the forward operator.
fn backward(c: &mut Call<'_>, rank: usize, mode: Mode) -> Result<Outputs> {
    let grad = operand(c, rank, mode)?;
    if !grad.dtype.is_float() {
        return Err(LoweringError::unsupported(format!("gradients of {}", grad.dtype)));
    }
    let out = c.out(0)?.clone();
    let axes = axes(c, 3, mode, grad.dtype, &out.sizes, &grad.sizes)?;
    let mut value = c.value(&grad, grad.dtype.opmath())?;
    for (dim, axis) in (2..).zip(&axes) {
        if axis.is_identity(mode) {
            continue;
        }
        let mut sum = None;
        for tap in axis.taps(mode) {
            let weighed = weigh(c.b, value, &tap.weights, dim)?;
            let summed = Segments::inverse(&tap.places, axis.input).sum(c.b, weighed, dim)?;
            sum = add(c.b, sum, summed)?;
        }
        value = sum.unwrap_or(value);
    }
    Ok(c.convert(value, out.dtype)?.into())
}
