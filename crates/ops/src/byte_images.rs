//! Interpolation of images of bytes in integer arithmetic, as CPU kernels do it: the weights of a dimension become 16-bit
//! integers, and the sums of each dimension are rounded to bytes, columns before rows.

use stablehlo::{Builder, Value};

use crate::antialias::Band;
use crate::convert;
use crate::dtype::DType;
use crate::error::LoweringError;
use crate::formula::formula;

type Result<T> = std::result::Result<T, LoweringError>;

/// Most bits that CPU gives the fractions of weights.
const MOST_BITS: i64 = 22;

/// Weights of one dimension, `None` where its size stays.
pub type Axis = Option<Weights>;

pub struct Weights {
    pub band: Band,
    /// The largest weight, which decides how many bits all have.
    pub largest: f64,
}

impl Weights {
    pub fn of(band: Band) -> Self {
        let largest = band.weights.iter().flatten().fold(0.0, |largest, &weight| weight.max(largest));
        Self { band, largest }
    }

    /// Interpolation without antialiasing by a kernel that reaches `radius` elements to each side of the sources.
    pub fn interpolating(input: i64, sources: &[f64], radius: i64, kernel: fn(f64) -> f64) -> Self {
        let (mut starts, mut weights, mut largest) = (Vec::new(), Vec::new(), 0.0f64);
        for &source in sources {
            // CPU rounds down in single precision.
            let place = ((source as f32).floor() as i64).min(input - 1);
            let rest = (source - place as f64).clamp(0.0, 1.0);
            let first = place - radius + 1;
            let start = first.max(0);
            let mut row: Vec<f64> = Vec::new();
            for k in 0..2 * radius {
                // What lies outside of the image counts for its edge.
                let at = ((first + k).clamp(0, input - 1) - start) as usize;
                row.resize(row.len().max(at + 1), 0.0);
                row[at] += kernel((k + 1 - radius) as f64 - rest);
                // Also that of a sum that is not complete.
                largest = largest.max(row[at]);
            }
            starts.push(start);
            weights.push(row);
        }
        Self { band: Band { columns: input, starts, weights }, largest }
    }

    fn bits(&self) -> i64 {
        let rounded = |bits: i64| (0.5 + self.largest * (1i64 << bits) as f64) as i64;
        (0..MOST_BITS).find(|bits| rounded(bits + 1) >= 1 << 15).unwrap_or(MOST_BITS)
    }

    fn apply(&self, b: &mut Builder, x: Value, dim: usize) -> Result<Value> {
        let bits = self.bits();
        let integer = |weight: &f64| {
            let scaled = weight * (1i64 << bits) as f64;
            (scaled + 0.5f64.copysign(scaled)).trunc()
        };
        let weights = self.band.weights.iter().map(|row| row.iter().map(integer).collect()).collect();
        let band = Band { columns: self.band.columns, starts: self.band.starts.clone(), weights };
        let x = convert::convert(b, x, DType::Int32)?;
        let sum = band.apply(b, x, dim)?;
        let sum = formula(b, [sum], |[sum]| {
            let half = sum.splat_int((1 << bits) >> 1);
            let rounded = (sum + half).apply2(sum.splat_int(bits), Builder::shift_right_arithmetic);
            rounded.max(sum.splat_int(0)).min(sum.splat_int(255))
        })?;
        convert::convert(b, sum, DType::UInt8)
    }
}

/// An image `[N, C, H, W]` of uint8; `axes` are those of rows and columns.
pub fn interpolate(b: &mut Builder, mut image: Value, axes: &[Axis]) -> Result<Value> {
    for (dim, axis) in axes.iter().enumerate().rev() {
        if let Some(weights) = axis {
            image = weights.apply(b, image, dim + 2)?;
        }
    }
    Ok(image)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_outside_of_the_image_count_for_its_edge() {
        let tent = |x: f64| (1.0 - x.abs()).max(0.0);
        let weights = Weights::interpolating(3, &[0.0, 1.25, 2.5], 1, tent);
        assert_eq!(weights.band.starts, [0, 1, 2]);
        assert_eq!(weights.band.weights, [vec![1.0, 0.0], vec![0.75, 0.25], vec![1.0]]);
        assert_eq!(weights.bits(), 14);
    }

    #[test]
    fn small_weights_have_more_bits() {
        let band = Band { columns: 8, starts: vec![0], weights: vec![vec![0.125; 8]] };
        assert_eq!(Weights::of(band).bits(), 17);
    }
}
