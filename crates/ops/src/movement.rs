//! Joins, pads, repeats and reorderings.

use stablehlo::{Builder, Value};

use crate::call::{Call, Outputs, wrap_dim};
use crate::convert;
use crate::error::LoweringError;
use crate::graph::{Dims, Number};
use crate::registry::OpDef;
use crate::views::{move_dim, operand, slice_dim, wrap_dims};

type Result<T> = std::result::Result<T, LoweringError>;

pub const OPS: &[OpDef] = &[
    OpDef::new("aten::cat", cat),
    OpDef::new("prims::cat", cat).composite(),
    OpDef::new("aten::stack", stack),
    OpDef::new("aten::flip", flip),
    OpDef::new("prims::rev", flip).composite(),
    OpDef::new("aten::roll", roll),
    OpDef::new("aten::repeat", repeat),
    OpDef::new("aten::tile", repeat).composite(),
    OpDef::new("aten::repeat_interleave.self_int", repeat_interleave).composite(),
    OpDef::new("aten::constant_pad_nd", constant_pad),
    OpDef::new("aten::pixel_shuffle", pixel_shuffle),
    OpDef::new("aten::pixel_unshuffle", pixel_unshuffle),
    OpDef::new("aten::channel_shuffle", channel_shuffle),
    OpDef::new("aten::native_channel_shuffle", channel_shuffle),
];

fn cat(c: &mut Call<'_>) -> Result<Outputs> {
    let tensors = c.tensors(0)?;
    let out = c.out(0)?.clone();
    let dim = wrap_dim(c.opt_int(1)?.unwrap_or(0), out.sizes.len())?;
    let mut parts = Vec::with_capacity(tensors.len());
    // PyTorch skips one-dimensional empty tensors whatever the rank of the others.
    for tensor in tensors.iter().filter(|tensor| tensor.rank() == out.sizes.len()) {
        if tensor.sizes[dim] > 0 {
            parts.push(c.value(tensor, out.dtype)?);
        }
    }
    if parts.is_empty() {
        return Ok(c.full(Number::Int(0), out.dtype, &out.sizes)?.into());
    }
    Ok(c.b.concatenate(&parts, dim as i64)?.into())
}

fn stack(c: &mut Call<'_>) -> Result<Outputs> {
    let tensors = c.tensors(0)?;
    let out = c.out(0)?.clone();
    let dim = wrap_dim(c.opt_int(1)?.unwrap_or(0), out.sizes.len())?;
    let mut sizes = out.sizes.clone();
    if let Some(size) = sizes.get_mut(dim) {
        *size = 1;
    }
    let mut parts = Vec::with_capacity(tensors.len());
    for tensor in &tensors {
        let value = c.value(tensor, out.dtype)?;
        parts.push(c.b.reshape(value, &sizes)?);
    }
    Ok(c.b.concatenate(&parts, dim as i64)?.into())
}

fn flip(c: &mut Call<'_>) -> Result<Outputs> {
    let value = operand(c)?;
    let rank = c.b.rank(value);
    let dims = wrap_dims(&c.ints(1)?, rank)?;
    if rank == 0 {
        return Ok(value.into());
    }
    Ok(c.b.reverse(value, &dims)?.into())
}

fn roll(c: &mut Call<'_>) -> Result<Outputs> {
    let value = operand(c)?;
    let sizes = Dims::from_slice(c.b.dims(value));
    let (shifts, dims) = (c.ints(1)?, c.opt_ints(2)?.unwrap_or_default());
    if sizes.iter().product::<i64>() == 0 || sizes.is_empty() {
        return Ok(value.into());
    }
    if dims.is_empty() {
        let [shift] = shifts[..] else {
            return Err(LoweringError::invalid("`shifts` required"));
        };
        let flat = c.b.reshape(value, &[sizes.iter().product()])?;
        let rolled = rotate(c.b, flat, 0, shift)?;
        return Ok(c.b.reshape(rolled, &sizes)?.into());
    }
    if shifts.len() != dims.len() {
        return Err(LoweringError::invalid(format!(
            "shifts and dimensions must align. shifts: {}, dims:{}",
            shifts.len(),
            dims.len()
        )));
    }
    let mut value = value;
    for (shift, dim) in shifts.into_iter().zip(wrap_dims(&dims, sizes.len())?) {
        value = rotate(c.b, value, dim as usize, shift)?;
    }
    Ok(value.into())
}

/// Moves the elements of one dimension by `shift`, those at the end to the front.
fn rotate(b: &mut Builder, x: Value, dim: usize, shift: i64) -> Result<Value> {
    let size = b.dims(x)[dim];
    let head = (-shift).rem_euclid(size);
    if head == 0 {
        return Ok(x);
    }
    let (front, back) = (slice_dim(b, x, dim, head, size, 1)?, slice_dim(b, x, dim, 0, head, 1)?);
    Ok(b.concatenate(&[front, back], dim as i64)?)
}

fn repeat(c: &mut Call<'_>) -> Result<Outputs> {
    let value = operand(c)?;
    let sizes = c.out(0)?.sizes.clone();
    let own = Dims::from_slice(c.b.dims(value));
    let Some(lead) = sizes.len().checked_sub(own.len()) else {
        return Err(LoweringError::invalid(
            "Number of dimensions of repeat dims can not be smaller than number of dimensions of tensor",
        ));
    };
    // Each dimension of n elements becomes (times, n), broadcast along the first of the pair.
    let (mut pairs, mut map) = (Dims::new(), Dims::new());
    for (dim, &size) in sizes.iter().enumerate() {
        let n = if dim < lead { 1 } else { own[dim - lead] };
        if n == 0 || size == 0 {
            return Ok(c.full(Number::Int(0), c.tensor(0)?.dtype, &sizes)?.into());
        }
        if n != size {
            pairs.push(size / n);
        }
        if dim >= lead {
            map.push(pairs.len() as i64);
            pairs.push(n);
        }
    }
    let expanded = c.b.broadcast_in_dim(value, &pairs, &map)?;
    Ok(c.b.reshape(expanded, &sizes)?.into())
}

fn repeat_interleave(c: &mut Call<'_>) -> Result<Outputs> {
    let value = operand(c)?;
    let repeats = c.int(1)?;
    let sizes = c.out(0)?.sizes.clone();
    let (value, dim) = match c.opt_int(2)? {
        Some(dim) => (value, wrap_dim(dim, c.b.rank(value))?),
        None => {
            let numel = c.b.dims(value).iter().product();
            (c.b.reshape(value, &[numel])?, 0)
        }
    };
    let mut pairs = Dims::from_slice(c.b.dims(value));
    let map: Dims = (0..=pairs.len() as i64).filter(|&d| d != dim as i64 + 1).take(pairs.len()).collect();
    pairs.insert((dim + 1).min(pairs.len()), repeats);
    let expanded = c.b.broadcast_in_dim(value, &pairs, &map)?;
    Ok(c.b.reshape(expanded, &sizes)?.into())
}

/// Low and high amounts per dimension from PyTorch's list, which starts at the last dimension.
pub fn pad_amounts(pad: &[i64], rank: usize) -> Result<(Dims, Dims)> {
    if !pad.len().is_multiple_of(2) || pad.len() / 2 > rank {
        return Err(LoweringError::invalid(format!(
            "Length of pad should be even and no more than twice the number of dimensions of the input. \
             Pad length is {} while the input has {rank} dimensions.",
            pad.len()
        )));
    }
    let (mut low, mut high) = (Dims::from_elem(0, rank), Dims::from_elem(0, rank));
    for (i, pair) in pad.chunks_exact(2).enumerate() {
        (low[rank - 1 - i], high[rank - 1 - i]) = (pair[0], pair[1]);
    }
    Ok((low, high))
}

fn constant_pad(c: &mut Call<'_>) -> Result<Outputs> {
    let x = c.tensor(0)?;
    let value = c.value(&x, x.dtype)?;
    let (low, high) = pad_amounts(&c.ints(1)?, x.rank())?;
    let fill = match c.opt_scalar(2, x.dtype)? {
        Some(fill) => fill,
        None => convert::constant(c.b, Number::Int(0), x.dtype)?,
    };
    let interior = Dims::from_elem(0, x.rank());
    Ok(c.b.pad(value, fill, &low, &high, &interior)?.into())
}

/// `[.., c * r * r, h, w]` to `[.., c, h * r, w * r]`.
fn pixel_shuffle(c: &mut Call<'_>) -> Result<Outputs> {
    let value = operand(c)?;
    let (r, out) = (c.int(1)?, c.out(0)?.sizes.clone());
    let Some((lead, &[channels, height, width])) = out.split_last_chunk::<3>() else {
        return Err(LoweringError::invalid("pixel_shuffle expects input to have at least 3 dimensions"));
    };
    let mut sizes = Dims::from_slice(lead);
    sizes.extend([channels, r, r, height / r, width / r]);
    let split = c.b.reshape(value, &sizes)?;
    let n = lead.len();
    // [c, r, r', h, w] to [c, h, r, w, r']
    let order = ordered(n, &[0, 3, 1, 4, 2]);
    let moved = c.b.transpose(split, &order)?;
    Ok(c.b.reshape(moved, &out)?.into())
}

fn pixel_unshuffle(c: &mut Call<'_>) -> Result<Outputs> {
    let value = operand(c)?;
    let (r, out) = (c.int(1)?, c.out(0)?.sizes.clone());
    let Some((lead, &[channels, height, width])) = out.split_last_chunk::<3>() else {
        return Err(LoweringError::invalid("pixel_unshuffle expects input to have at least 3 dimensions"));
    };
    let mut sizes = Dims::from_slice(lead);
    sizes.extend([channels / (r * r).max(1), height, r, width, r]);
    let split = c.b.reshape(value, &sizes)?;
    let n = lead.len();
    let order = ordered(n, &[0, 2, 4, 1, 3]);
    let moved = c.b.transpose(split, &order)?;
    Ok(c.b.reshape(moved, &out)?.into())
}

fn ordered(lead: usize, order: &[usize]) -> Dims {
    (0..lead).chain(order.iter().map(|&dim| lead + dim)).map(|dim| dim as i64).collect()
}

fn channel_shuffle(c: &mut Call<'_>) -> Result<Outputs> {
    let value = operand(c)?;
    let (groups, out) = (c.int(1)?, c.out(0)?.sizes.clone());
    if out.len() < 2 || groups < 1 {
        return Err(LoweringError::invalid("channel_shuffle expects a batch, channels and positive groups"));
    }
    let mut sizes = out.clone();
    sizes[1] = out[1] / groups;
    sizes.insert(1, groups);
    let split = c.b.reshape(value, &sizes)?;
    let moved = move_dim(c.b, split, 1, 2)?;
    Ok(c.b.reshape(moved, &out)?.into())
}
