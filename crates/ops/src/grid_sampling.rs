//! Sampling of images at the points of a grid. Along each axis a point has taps: elements of the input with a weight.
//! The taps of all points are gathered at once, over the product of the axes.

use stablehlo::{Builder, GatherDimensionNumbers, ScatterDimensionNumbers, ScatterFlags, Value};

use crate::call::{Call, Outputs};
use crate::convert;
use crate::error::LoweringError;
use crate::formula::{Expr, formula, formulas};
use crate::graph::{Dims, Number};
use crate::indices::{index_dtype, iota};
use crate::normalization::as_output;
use crate::registry::OpDef;
use crate::statistics::spread;
use crate::views::take_one;

type Result<T> = std::result::Result<T, LoweringError>;

pub const OPS: &[OpDef] = &[
    OpDef::new("aten::grid_sampler_2d", |c| forward(c, 2)),
    OpDef::new("aten::grid_sampler_2d_backward", |c| backward(c, 2)),
    OpDef::new("aten::grid_sampler_3d", |c| forward(c, 3)),
    OpDef::new("aten::grid_sampler_3d_backward", |c| backward(c, 3)),
];

/// `GridSamplerInterpolation`
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mode {
    Linear,
    Nearest,
    Cubic,
}

impl Mode {
    fn taps(self) -> i64 {
        match self {
            Mode::Linear => 2,
            Mode::Nearest => 1,
            Mode::Cubic => 4,
        }
    }
}

/// `GridSamplerPadding`
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Padding {
    Zeros,
    Border,
    Reflection,
}

/// One axis of the input.
#[derive(Clone, Copy)]
struct Axis {
    size: i64,
    mode: Mode,
    padding: Padding,
    align_corners: bool,
}

/// What an axis contributes, [N, P, K] for P points with K taps each.
struct Taps {
    place: Value,
    inside: Value,
    weight: Value,
    /// The derivative of the weight by the grid's component.
    slope: Value,
}

impl Axis {
    /// Elements per unit of the grid, which reaches from -1 to 1.
    fn scale(&self) -> f64 {
        (if self.align_corners { self.size - 1 } else { self.size }) as f64 / 2.0
    }

    fn position<'f>(&self, component: Expr<'f>) -> Expr<'f> {
        let position = (component + 1.0) * self.scale();
        if self.align_corners { position } else { position - 0.5 }
    }

    /// A position mirrored at the edges of the input (at the middle of its outer elements with `align_corners`), and
    /// the sign of its derivative.
    fn reflected<'f>(&self, position: Expr<'f>) -> [Expr<'f>; 2] {
        let (low, span) = match self.align_corners {
            true => (0.0, (self.size - 1) as f64),
            false => (-0.5, self.size as f64),
        };
        if span == 0.0 {
            return [position.splat(0.0), position.splat(0.0)];
        }
        let from_low = position - low;
        let sign = from_low.lt(from_low.splat(0.0)).select(from_low.splat(-1.0), from_low.splat(1.0));
        let distance = from_low.abs();
        let extra = distance % distance.splat(span);
        let flips = (distance / span).floor();
        let even = (flips % flips.splat(2.0)).eq(flips.splat(0.0));
        [even.select(extra, span - extra) + low, even.select(sign, -sign)]
    }

    /// A position moved into the input, and the derivative of that. As on CUDA, NaN counts as the first element.
    fn clipped<'f>(&self, position: Expr<'f>) -> [Expr<'f>; 2] {
        let (zero, last) = (position.splat(0.0), position.splat((self.size - 1) as f64));
        let inside = position.gt(zero) & position.lt(last);
        let clipped = position.gt(zero).select(position.min(last), zero);
        [clipped, inside.select(position.splat(1.0), zero)]
    }

    fn padded<'f>(&self, position: Expr<'f>) -> [Expr<'f>; 2] {
        match self.padding {
            Padding::Zeros => [position, position.splat(1.0)],
            Padding::Border => self.clipped(position),
            Padding::Reflection => {
                let [position, sign] = self.reflected(position);
                let [position, derivative] = self.clipped(position);
                [position, sign * derivative]
            }
        }
    }

    /// Taps of the points whose component of the grid is given, [N, P].
    fn taps(&self, b: &mut Builder, component: Value) -> Result<Taps> {
        let mut sizes = Dims::from_slice(b.dims(component));
        sizes.push(self.mode.taps());
        let component = spread(b, component, &sizes, &[2])?;
        let dtype = convert::dtype_of(b, component)?;
        let tap = iota(b, dtype, &sizes, 2)?;
        let index = index_dtype(self.size);
        let [place, inside, weight, slope] = formulas(b, [component, tap], |[component, tap]| {
            let position = self.position(component);
            let [place, weight, slope] = match self.mode {
                Mode::Nearest => {
                    let [position, _] = self.padded(position);
                    [position.round_even(), position.splat(1.0), position.splat(0.0)]
                }
                Mode::Linear => {
                    let [position, derivative] = self.padded(position);
                    let first = position.floor();
                    let upper = position - first;
                    let is_first = tap.eq(tap.splat(0.0));
                    let scale = derivative * self.scale();
                    [first + tap, is_first.select(1.0 - upper, upper), is_first.select(-scale, scale)]
                }
                Mode::Cubic => {
                    let first = position.floor();
                    let [weight, slope] = cubic(position - first + 1.0 - tap);
                    let [place, _] = self.padded(first - 1.0 + tap);
                    [place, weight, slope * self.scale()]
                }
            };
            let (zero, last) = (place.splat(0.0), place.splat((self.size - 1) as f64));
            let inside = place.ge(zero) & place.le(last);
            let place = inside.select(place, zero).to(index);
            [place, inside, weight, slope]
        })?;
        Ok(Taps { place, inside, weight, slope })
    }
}

/// The convolution kernel of Keys with a = -0.75 at `x` in [-2, 2], and its derivative.
fn cubic<'f>(x: Expr<'f>) -> [Expr<'f>; 2] {
    const A: f64 = -0.75;
    let d = x.abs();
    let near = d.le(d.splat(1.0));
    let inner = ((A + 2.0) * d - (A + 3.0)) * d * d + 1.0;
    let outer = ((A * d - 5.0 * A) * d + 8.0 * A) * d - 4.0 * A;
    let inner_slope = (3.0 * (A + 2.0) * d - 2.0 * (A + 3.0)) * d;
    let outer_slope = (3.0 * A * d - 10.0 * A) * d + 8.0 * A;
    [near.select(inner, outer), near.select(inner_slope, outer_slope) * x.sign()]
}

/// The axes of a call and the product of their taps.
struct Sampling {
    mode: Mode,
    taps: Vec<Taps>,
    /// [N, P, K, K..]
    sizes: Dims,
    /// Elements per plane of the input.
    plane: i64,
    /// Flat place in that plane, [N, P K K..].
    place: Value,
    /// [N, P, K, K..]
    inside: Value,
}

impl Sampling {
    /// Arguments: input at `first`, grid, mode, padding, align_corners.
    fn parse(c: &mut Call<'_>, first: usize, rank: usize) -> Result<Self> {
        let (x, grid) = (c.tensor(first)?, c.tensor(first + 1)?);
        if !x.dtype.is_float() || x.dtype != grid.dtype {
            return Err(LoweringError::unsupported(format!("sampling of {} at {}", x.dtype, grid.dtype)));
        }
        let mode = match c.int(first + 2)? {
            0 => Mode::Linear,
            1 => Mode::Nearest,
            2 => Mode::Cubic,
            other => return Err(LoweringError::unsupported(format!("interpolation mode {other}"))),
        };
        let padding = match c.int(first + 3)? {
            0 => Padding::Zeros,
            1 => Padding::Border,
            2 => Padding::Reflection,
            other => return Err(LoweringError::unsupported(format!("padding mode {other}"))),
        };
        let align_corners = c.bool(first + 4)?;
        let spatial = Dims::from_slice(&x.sizes[2..]);
        let points: i64 = grid.sizes[1..=rank].iter().product();
        let batch = grid.sizes[0];
        let value = c.value(&grid, grid.dtype.opmath())?;
        let value = c.b.reshape(value, &[batch, points, rank as i64])?;
        let mut sizes = Dims::from_slice(&[batch, points]);
        let mut taps = Vec::with_capacity(rank);
        for (dim, &size) in spatial.iter().enumerate() {
            // The grid names the last axis first.
            let component = take_one(c.b, value, 2, (rank - 1 - dim) as i64)?;
            taps.push(Axis { size, mode, padding, align_corners }.taps(c.b, component)?);
            sizes.push(mode.taps());
        }
        let plane: i64 = spatial.iter().product();
        let index = index_dtype(plane);
        let (mut place, mut inside): (Option<Value>, Option<Value>) = (None, None);
        for (dim, axis) in taps.iter().enumerate() {
            let own = axis_dims(dim);
            let at = c.convert(axis.place, index)?;
            let at = c.b.broadcast_in_dim(at, &sizes, &own)?;
            place = Some(match place {
                Some(place) => {
                    formula(c.b, [place, at], |[place, at]| place * place.splat_int(spatial[dim]) + at)?
                }
                None => at,
            });
            let is_inside = c.b.broadcast_in_dim(axis.inside, &sizes, &own)?;
            inside = Some(match inside {
                Some(inside) => c.b.and(inside, is_inside)?,
                None => is_inside,
            });
        }
        let (Some(place), Some(inside)) = (place, inside) else {
            return Err(LoweringError::unsupported("sampling without axes"));
        };
        let place = c.b.reshape(place, &[batch, sizes[1..].iter().product()])?;
        Ok(Self { mode, taps, sizes, plane, place, inside })
    }

    /// The product of the axes' weights, [N, P, K, K..]; the derivative of that by axis `sloped`.
    fn weight(&self, b: &mut Builder, sloped: Option<usize>) -> Result<Value> {
        let mut product: Option<Value> = None;
        for (dim, axis) in self.taps.iter().enumerate() {
            let own = if sloped == Some(dim) { axis.slope } else { axis.weight };
            let own = b.broadcast_in_dim(own, &self.sizes, &axis_dims(dim))?;
            product = Some(match product {
                Some(product) => b.multiply(product, own)?,
                None => own,
            });
        }
        product.ok_or_else(|| LoweringError::unsupported("sampling without axes"))
    }

    /// Dimensions [N, C, P, K, K..].
    fn all(&self, channels: i64) -> Dims {
        let mut all = self.sizes.clone();
        all.insert(1, channels);
        all
    }

    /// A value of [N, P, K, K..] for every channel.
    fn by_channel(&self, b: &mut Builder, x: Value, channels: i64) -> Result<Value> {
        spread(b, x, &self.all(channels), &[1])
    }

    /// The elements of `x` [N, C, plane] at all taps, [N, C, P, K, K..].
    fn gather(&self, b: &mut Builder, x: Value) -> Result<Value> {
        let channels = b.dims(x)[1];
        let vectors = self.vectors(b)?;
        let numbers = GatherDimensionNumbers {
            offset_dims: [1].into_iter().collect(),
            collapsed_slice_dims: [2].into_iter().collect(),
            operand_batching_dims: [0].into_iter().collect(),
            start_indices_batching_dims: [0].into_iter().collect(),
            start_index_map: [2].into_iter().collect(),
            index_vector_dim: 2,
        };
        let gathered = b.gather(x, vectors, &numbers, &[1, channels, 1], false)?;
        Ok(b.reshape(gathered, &self.all(channels))?)
    }

    /// The other way: `updates` [N, C, P, K, K..] added up in [N, C, plane].
    fn scatter(&self, b: &mut Builder, updates: Value) -> Result<Value> {
        let (batch, channels) = (b.dims(updates)[0], b.dims(updates)[1]);
        let vectors = self.vectors(b)?;
        let taps = b.dims(self.place)[1];
        let updates = b.reshape(updates, &[batch, channels, taps])?;
        let zero = b.zero(b.elem(updates))?;
        let zeros = b.broadcast_scalar(zero, &[batch, channels, self.plane])?;
        let numbers = ScatterDimensionNumbers {
            update_window_dims: [1].into_iter().collect(),
            inserted_window_dims: [2].into_iter().collect(),
            input_batching_dims: [0].into_iter().collect(),
            scatter_indices_batching_dims: [0].into_iter().collect(),
            scatter_dims_to_operand_dims: [2].into_iter().collect(),
            index_vector_dim: 2,
        };
        let results =
            b.scatter(&[zeros], vectors, &[updates], &numbers, ScatterFlags::default(), |b, args| {
                Ok(vec![b.add(args[0], args[1])?])
            })?;
        Ok(results[0])
    }

    fn vectors(&self, b: &mut Builder) -> Result<Value> {
        let mut sizes = Dims::from_slice(b.dims(self.place));
        sizes.push(1);
        Ok(b.reshape(self.place, &sizes)?)
    }
}

fn axis_dims(dim: usize) -> [i64; 3] {
    [0, 1, dim as i64 + 2]
}

/// The input as [N, C, plane].
fn planes(c: &mut Call<'_>, index: usize) -> Result<Value> {
    let x = c.tensor(index)?;
    let plane = x.sizes[2..].iter().product();
    let value = c.value(&x, x.dtype.opmath())?;
    Ok(c.b.reshape(value, &[x.sizes[0], x.sizes[1], plane])?)
}

/// Products of `x` and `y` of [N, C, P, K, K..] where the tap lies inside, else 0: outside may be anything.
fn products(c: &mut Call<'_>, s: &Sampling, x: Value, y: Value, channels: i64) -> Result<Value> {
    let inside = s.by_channel(c.b, s.inside, channels)?;
    formula(c.b, [x, y, inside], |[x, y, inside]| inside.select(x * y, x.splat(0.0)))
}

fn forward(c: &mut Call<'_>, rank: usize) -> Result<Outputs> {
    let out = c.out(0)?.clone();
    if out.sizes.contains(&0) {
        return Ok(c.full(Number::Int(0), out.dtype, &out.sizes)?.into());
    }
    let s = Sampling::parse(c, 0, rank)?;
    let channels = out.sizes[1];
    let x = planes(c, 0)?;
    let gathered = s.gather(c.b, x)?;
    let weight = s.weight(c.b, None)?;
    let weight = s.by_channel(c.b, weight, channels)?;
    let terms = products(c, &s, gathered, weight, channels)?;
    let taps: Dims = (3..3 + rank as i64).collect();
    let sum = c.b.reduce_add(terms, &taps)?;
    Ok([as_output(c, 0, sum)?].into())
}

/// Arguments: gradient, input, grid, mode, padding, align_corners, output_mask. Outputs: gradients of input and grid.
fn backward(c: &mut Call<'_>, rank: usize) -> Result<Outputs> {
    let (grad, x, grid) = (c.tensor(0)?, c.tensor(1)?, c.tensor(2)?);
    let dtype = x.dtype.opmath();
    if grad.numel() == 0 {
        let image = c.full(Number::Int(0), dtype, &x.sizes)?;
        let points = c.full(Number::Int(0), dtype, &grid.sizes)?;
        return Ok([as_output(c, 0, image)?, as_output(c, 1, points)?].into());
    }
    let s = Sampling::parse(c, 1, rank)?;
    let channels = x.sizes[1];
    let grad = c.value(&grad, dtype)?;
    let grad = c.b.reshape(grad, &[s.sizes[0], channels, s.sizes[1]])?;
    let taps: Dims = (3..3 + rank as i64).collect();
    let grad = spread(c.b, grad, &s.all(channels), &taps)?;
    let image = if c.out(0).is_ok() {
        let weight = s.weight(c.b, None)?;
        let weight = s.by_channel(c.b, weight, channels)?;
        let updates = products(c, &s, grad, weight, channels)?;
        let image = s.scatter(c.b, updates)?;
        as_output(c, 0, image)?
    } else {
        None
    };
    let planes = planes(c, 1)?;
    let gathered = s.gather(c.b, planes)?;
    let effect = products(c, &s, gathered, grad, channels)?;
    let effect = c.b.reduce_add(effect, &[1])?;
    let mut components = Vec::with_capacity(rank);
    for dim in (0..rank).rev() {
        let slope = s.weight(c.b, Some(dim))?;
        // The nearest element stays the same whatever it holds; outside, weights may be anything.
        let nearest = s.mode == Mode::Nearest;
        let term = formula(c.b, [effect, slope, s.inside], |[effect, slope, inside]| {
            let zero = effect.splat(0.0);
            if nearest { zero } else { inside.select(effect * slope, zero) }
        })?;
        let over: Dims = (2..2 + rank as i64).collect();
        let sum = c.b.reduce_add(term, &over)?;
        components.push(c.b.reshape(sum, &[s.sizes[0], s.sizes[1], 1])?);
    }
    let points = c.b.concatenate(&components, 2)?;
    Ok([image, as_output(c, 1, points)?].into())
}
