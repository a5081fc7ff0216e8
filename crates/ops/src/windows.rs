//! Windows that slide over the trailing dimensions, and windows of any extents along one dimension.

use stablehlo::{Builder, Direction, TensorType, Value, WindowDims};

use crate::call::Call;
use crate::convert;
use crate::dtype::DType;
use crate::error::LoweringError;
use crate::graph::{Dims, Number};
use crate::indices::{iota, take};
use crate::statistics::spread;

type Result<T> = std::result::Result<T, LoweringError>;

/// A sliding window, one entry per trailing dimension.
#[derive(Clone, Debug)]
pub struct Pool {
    pub kernel: Vec<i64>,
    pub stride: Vec<i64>,
    pub padding: Vec<i64>,
    pub dilation: Vec<i64>,
}

impl Pool {
    /// Arguments from `first`: kernel, stride (the kernel if empty), padding, and dilation if `dilated`.
    pub fn parse(c: &Call<'_>, first: usize, rank: usize, dilated: bool) -> Result<Self> {
        let list = |index: usize| -> Result<Vec<i64>> {
            let list = c.ints(index)?;
            match list.len() {
                1 => Ok(vec![list[0]; rank]),
                0 => Ok(list),
                n if n == rank => Ok(list),
                n => Err(LoweringError::invalid(format!("expected {rank} window values, got {n}"))),
            }
        };
        let kernel = list(first)?;
        let stride = list(first + 1)?;
        let stride = if stride.is_empty() { kernel.clone() } else { stride };
        let dilation = if dilated { list(first + 3)? } else { vec![1; rank] };
        Ok(Self { kernel, stride, padding: list(first + 2)?, dilation })
    }

    pub fn rank(&self) -> usize {
        self.kernel.len()
    }

    /// Elements from the first to the last of a window.
    pub fn extent(&self, dim: usize) -> i64 {
        self.dilation[dim] * (self.kernel[dim] - 1) + 1
    }

    /// The window over a tensor of `sizes`, padded at the end as far as `outputs` windows reach (`ceil_mode` lets
    /// the last one reach beyond the padding).
    pub fn window(&self, sizes: &[i64], outputs: &[i64]) -> WindowDims {
        let leading = sizes.len() - self.rank();
        let mut window = WindowDims::new(&vec![1; sizes.len()]);
        for dim in 0..self.rank() {
            let at = leading + dim;
            window.dims[at] = self.kernel[dim];
            window.strides[at] = self.stride[dim];
            window.window_dilations[at] = self.dilation[dim];
            let reached = (outputs[at] - 1) * self.stride[dim] + self.extent(dim);
            let high = (reached - sizes[at] - self.padding[dim]).max(0);
            window.padding[at] = (self.padding[dim], high);
        }
        window
    }
}

/// The flat position of each element of `sizes` within its last `rank` dimensions.
pub fn plane_positions(b: &mut Builder, sizes: &[i64], rank: usize, dtype: DType) -> Result<Value> {
    let leading = sizes.len() - rank;
    let plane = &sizes[leading..];
    let count: i64 = plane.iter().product();
    let flat = iota(b, dtype, &[count], 0)?;
    let flat = b.reshape(flat, plane)?;
    let others: Dims = (0..leading as i64).collect();
    spread(b, flat, sizes, &others)
}

/// Windows `starts[i]..ends[i]` along one dimension.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segments {
    pub starts: Vec<i64>,
    pub ends: Vec<i64>,
}

impl Segments {
    /// The windows of adaptive pooling from `input` to `output` elements.
    pub fn adaptive(input: i64, output: i64) -> Self {
        let start = |i: i64| i * input / output;
        let end = |i: i64| ((i + 1) * input + output - 1) / output;
        Self { starts: (0..output).map(start).collect(), ends: (0..output).map(end).collect() }
    }

    /// The places `i` of each target `0..targets` in `chosen`, which ascends.
    pub fn inverse(chosen: &[i64], targets: i64) -> Self {
        let place = |target: i64| chosen.partition_point(|&c| c < target) as i64;
        Self {
            starts: (0..targets).map(place).collect(),
            ends: (0..targets).map(|target| place(target + 1)).collect(),
        }
    }

    /// For each element `0..input`, the windows that contain it; starts and ends ascend.
    pub fn containing(&self, input: i64) -> Self {
        let starts = |i: i64| self.ends.partition_point(|&end| end <= i) as i64;
        let ends = |i: i64| self.starts.partition_point(|&start| start <= i) as i64;
        Self { starts: (0..input).map(starts).collect(), ends: (0..input).map(ends).collect() }
    }

    pub fn lengths(&self) -> Vec<i64> {
        self.starts.iter().zip(&self.ends).map(|(start, end)| (end - start).max(0)).collect()
    }

    fn width(&self) -> i64 {
        self.lengths().into_iter().max().unwrap_or(0).max(1)
    }

    /// Equal windows side by side: a reshape splits them.
    fn tiles(&self, size: i64) -> bool {
        let width = self.width();
        let count = self.starts.len() as i64;
        width * count == size
            && self
                .starts
                .iter()
                .zip(&self.ends)
                .enumerate()
                .all(|(i, (start, end))| *start == i as i64 * width && *end == *start + width)
    }

    /// `x` with dimension `dim` replaced by (window, place in the window); places beyond a window hold `filler`.
    pub fn gather(&self, b: &mut Builder, x: Value, dim: usize, filler: Value) -> Result<Value> {
        let mut sizes = Dims::from_slice(b.dims(x));
        let size = sizes[dim];
        let (count, width) = (self.starts.len() as i64, self.width());
        sizes[dim] = count;
        sizes.insert(dim + 1, width);
        if self.tiles(size) {
            return Ok(b.reshape(x, &sizes)?);
        }
        if size == 0 {
            return Ok(b.broadcast_scalar(filler, &sizes)?);
        }
        let index = TensorType::new(DType::Int64.element_type(), &[count, width]);
        let starts = b.constant_i64_array(&self.starts)?;
        let starts = spread(b, starts, &[count, width], &[1])?;
        let place = b.iota(index, 1)?;
        let place = b.add(starts, place)?;
        let ends = b.constant_i64_array(&self.ends)?;
        let ends = spread(b, ends, &[count, width], &[1])?;
        let inside = b.compare(place, ends, Direction::Lt)?;
        let last = convert::splat(b, place, Number::Int(size - 1))?;
        let place = b.minimum(place, last)?;
        let place = convert::convert(b, place, DType::Int32)?;
        let gathered = take(b, x, dim, place)?;
        if self.lengths().iter().all(|&length| length == width) {
            return Ok(gathered);
        }
        let inside = b.broadcast_in_dim(inside, &sizes, &[dim as i64, dim as i64 + 1])?;
        let filler = b.broadcast_scalar(filler, &sizes)?;
        Ok(b.select(inside, gathered, filler)?)
    }

    /// The sum of each window along `dim`.
    pub fn sum(&self, b: &mut Builder, x: Value, dim: usize) -> Result<Value> {
        let zero = b.zero(b.elem(x))?;
        let windows = self.gather(b, x, dim, zero)?;
        Ok(b.reduce_add(windows, &[dim as i64 + 1])?)
    }
}
