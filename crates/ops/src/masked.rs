//! Writes at boolean masks that need no sizes from the device: masked_scatter, and index_put whose values do not
//! depend on how many elements the mask selects, or whose number the program checks.

use stablehlo::{Direction, Value};

use crate::arguments::{Arguments, require};
use crate::call::{Call, Outputs, Tensor};
use crate::convert;
use crate::dtype::DType;
use crate::error::{CheckKind, LoweringError};
use crate::graph::{Dims, Number};
use crate::indexing::is_mask;
use crate::indices::{index_dtype, take};
use crate::registry::OpDef;
use crate::scans::scan;

type Result<T> = std::result::Result<T, LoweringError>;

pub const OPS: &[OpDef] = &[OpDef::new("aten::masked_scatter", masked_scatter).refuses(refuse).atomic()];

fn refuse(arguments: &Arguments<'_>) -> Result<()> {
    let dtype = arguments.tensor(1)?.dtype;
    require(dtype == DType::Bool, || {
        format!(
            "masked_scatter_ only supports boolean masks, but got mask with dtype {}",
            dtype.name_in_cpp()
        )
    })
}

/// For each element of a flat mask how many selected ones come before it, and their number.
fn ranks(c: &mut Call<'_>, mask: Value) -> Result<(Value, Value)> {
    let dtype = index_dtype(c.b.dims(mask)[0]);
    let ones = c.convert(mask, dtype)?;
    let [counts] = scan(c.b, [ones], 0, &|b, [before], [own]| Ok([b.add(before, own)?]))?;
    let one = convert::splat(c.b, counts, Number::Int(1))?;
    let ranks = c.b.subtract(counts, one)?;
    let total = c.b.reduce_add(ones, &[0])?;
    Ok((ranks, total))
}

/// The mask, and nothing where the program reports an error.
fn unless(c: &mut Call<'_>, failed: Value, mask: Value) -> Result<Value> {
    let sizes = Dims::from_slice(c.b.dims(mask));
    let fine = c.b.not(failed)?;
    let fine = c.b.broadcast_scalar(fine, &sizes)?;
    Ok(c.b.and(mask, fine)?)
}

fn masked_scatter(c: &mut Call<'_>) -> Result<Outputs> {
    let (x, mask, source) = (c.tensor(0)?, c.tensor(1)?, c.tensor(2)?);
    let sizes = c.out(0)?.sizes.clone();
    let numel: i64 = sizes.iter().product();
    let own = c.broadcast(&x, x.dtype, &sizes)?;
    if numel == 0 {
        return Ok(own.into());
    }
    let mask = c.broadcast(&mask, DType::Bool, &sizes)?;
    let flat = c.b.reshape(mask, &[numel])?;
    let (ranks, total) = ranks(c, flat)?;
    let available = convert::splat(c.b, total, Number::Int(source.numel().min(numel)))?;
    let short = c.b.compare(total, available, Direction::Gt)?;
    c.check(
        short,
        CheckKind::Runtime,
        "masked_scatter: expected self and source to have the same number of elements as the mask selects",
    );
    let mask = unless(c, short, mask)?;
    if source.numel() == 0 {
        return Ok(own.into());
    }
    let from = c.value(&source, x.dtype)?;
    let from = c.b.reshape(from, &[source.numel()])?;
    let taken = take(c.b, from, 0, ranks)?;
    let taken = c.b.reshape(taken, &sizes)?;
    Ok(c.b.select(mask, taken, own)?.into())
}

/// `index_put` at one mask; `None` if the indices are no single mask.
pub fn index_put(
    c: &mut Call<'_>,
    x: &Tensor,
    indices: &[Option<Tensor>],
    values: &Tensor,
    accumulate: bool,
) -> Result<Option<Value>> {
    let mut given = indices.iter().enumerate().filter_map(|(dim, index)| Some((dim, index.as_ref()?)));
    let (Some((dim, mask)), None) = (given.next(), given.next()) else { return Ok(None) };
    if !is_mask(mask) {
        return Ok(None);
    }
    let end = dim + mask.rank();
    if end > x.rank() || x.sizes[dim..end] != mask.sizes[..] {
        return Err(LoweringError::InvalidArgument {
            kind: CheckKind::Index,
            message: format!(
                "The shape of the mask {:?} at index 0 does not match the shape of the indexed tensor {:?} at \
                 index {dim}",
                mask.sizes, x.sizes
            ),
        });
    }
    // The values broadcast to [x before the mask.., selected, x after it..].
    let (before, after) = (&x.sizes[..dim], &x.sizes[end..]);
    let result_rank = before.len() + 1 + after.len();
    let extra = values.rank().saturating_sub(result_rank);
    if values.sizes[..extra].iter().any(|&size| size != 1) {
        return Err(LoweringError::unsupported("values of more dimensions than the mask selects"));
    }
    let own_sizes = &values.sizes[extra..];
    let mut sizes = Dims::from_elem(1, result_rank - own_sizes.len());
    sizes.extend_from_slice(own_sizes);
    let count = sizes[dim];
    let selectable = mask.numel();
    let mut spread = Dims::from_slice(before);
    spread.push(selectable);
    spread.extend_from_slice(after);
    let fits = |(own, all): (&i64, &i64)| *own == 1 || own == all;
    if !sizes[..dim].iter().zip(before).all(fits) || !sizes[dim + 1..].iter().zip(after).all(fits) {
        return Err(LoweringError::invalid(format!(
            "shape mismatch: value tensor of shape {:?} cannot be broadcast to the indexing result",
            values.sizes
        )));
    }
    let own = c.value(x, x.dtype)?;
    if x.numel() == 0 {
        return Ok(Some(own));
    }
    let flat = c.b.reshape(own, &spread)?;
    let mask = c.value(mask, DType::Bool)?;
    let mask = c.b.reshape(mask, &[selectable])?;
    let updates = c.value(values, x.dtype)?;
    let updates = c.b.reshape(updates, &sizes)?;
    let (mask, updates) = if count == 1 {
        (mask, updates)
    } else {
        let (ranks, total) = ranks(c, mask)?;
        let expected = convert::splat(c.b, total, Number::Int(count.min(selectable + 1)))?;
        let wrong = c.b.compare(total, expected, Direction::Ne)?;
        let message = format!(
            "shape mismatch: value tensor of shape {:?} cannot be broadcast to indexing result",
            values.sizes
        );
        c.check(wrong, CheckKind::Runtime, message);
        if count == 0 {
            return Ok(Some(own));
        }
        (unless(c, wrong, mask)?, take(c.b, updates, dim, ranks)?)
    };
    let updates = convert::broadcast_to(c.b, updates, &spread)?;
    let updates = if accumulate { c.b.add(flat, updates)? } else { updates };
    let mask = c.b.broadcast_in_dim(mask, &spread, &[dim as i64])?;
    let written = c.b.select(mask, updates, flat)?;
    Ok(Some(c.b.reshape(written, &x.sizes)?))
}
