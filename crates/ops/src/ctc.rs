//! Connectionist temporal classification (Graves et al., 2006): forward and backward variables over the targets with
//! blanks between them, one step of a loop per frame. Equation numbers are those of the paper.

use stablehlo::{Builder, Direction, Value};

use crate::call::{Call, Outputs, Tensor};
use crate::convert;
use crate::dtype::DType;
use crate::error::{CheckKind, LoweringError};
use crate::formula::{Expr, formula};
use crate::graph::{Dims, Number};
use crate::indices::{Combine, any, gather_along, index_dtype, iota, scatter_along};
use crate::normalization::as_output;
use crate::registry::OpDef;
use crate::views::slice_dim;

type Result<T> = std::result::Result<T, LoweringError>;

pub const OPS: &[OpDef] =
    &[OpDef::new("aten::_ctc_loss.Tensor", forward), OpDef::new("aten::_ctc_loss_backward.Tensor", backward)];

/// What both directions need of a batch of N sequences of T frames with C labels and targets of S = 2 * longest + 1
/// places: a blank before, between and after the labels.
struct Alignment {
    frames: i64,
    batch: i64,
    labels: i64,
    places: i64,
    dtype: DType,
    /// [T, N, C]
    log_probs: Value,
    /// The label at each place, [T, N, S]: the same in each frame.
    label: Value,
    /// The log probability of that label, [T, N, S].
    emission: Value,
    /// Whether a place may be reached from the one two before, [N, S].
    skips: Value,
    /// The number of a place, [N, S].
    place: Value,
    /// Frames of each sequence, [N, S].
    length: Value,
    /// The last place of each sequence, [N, S].
    last: Value,
    /// [N]
    lengths: Value,
    /// [N]
    target_lengths: Value,
}

impl Alignment {
    /// Arguments from `first`: log_probs, targets [N, longest], input_lengths, target_lengths; the blank at `blank`.
    fn parse(c: &mut Call<'_>, first: usize, blank: usize) -> Result<Self> {
        let (log_probs, targets) = (c.tensor(first)?, c.tensor(first + 1)?);
        let (lengths, target_lengths) = (c.tensor(first + 2)?, c.tensor(first + 3)?);
        let [frames, batch, labels] = log_probs.sizes[..] else {
            return Err(LoweringError::invalid("Expected 3-dimensional tensor for argument #1 'log_probs'"));
        };
        let dtype = log_probs.dtype;
        if !matches!(dtype, DType::Float32 | DType::Float64) || targets.rank() != 2 {
            return Err(LoweringError::unsupported(format!("{dtype} or targets that are not padded")));
        }
        let longest = targets.sizes[1];
        let places = 2 * longest + 1;
        let blank = c.int(blank)?;
        let sizes = [batch, places];
        let place = iota(c.b, DType::Int32, &sizes, 1)?;
        let lengths = length(c, &lengths, frames, "input_lengths")?;
        let target_lengths = length(c, &target_lengths, longest, "target_lengths")?;
        let spread = |b: &mut Builder, value: Value| b.broadcast_in_dim(value, &sizes, &[0]);
        let length = spread(c.b, lengths)?;
        let target_length = spread(c.b, target_lengths)?;
        let last = formula(c.b, [target_length], |[length]| length + length)?;
        let label = with_blanks(c, &targets, place, last, blank, labels)?;
        let skips = skips(c.b, label, place)?;
        let all = [frames, batch, places];
        let label = c.b.broadcast_in_dim(label, &all, &[1, 2])?;
        let log_probs = c.value(&log_probs, dtype)?;
        let emission = gather_along(c.b, log_probs, 2, label)?;
        Ok(Self {
            frames,
            batch,
            labels,
            places,
            dtype,
            log_probs,
            label,
            emission,
            skips,
            place,
            length,
            last,
            lengths,
            target_lengths,
        })
    }

    fn sizes(&self) -> [i64; 2] {
        [self.batch, self.places]
    }

    /// Frame `t` of a value of dimensions [T, N, S].
    fn frame(&self, b: &mut Builder, x: Value, t: Value) -> Result<Value> {
        let zero = b.zero(DType::Int32.element_type())?;
        let frame = b.dynamic_slice(x, &[t, zero, zero], &[1, self.batch, self.places])?;
        Ok(b.reshape(frame, &self.sizes())?)
    }

    fn put_frame(&self, b: &mut Builder, x: Value, t: Value, frame: Value) -> Result<Value> {
        let zero = b.zero(DType::Int32.element_type())?;
        let frame = b.reshape(frame, &[1, self.batch, self.places])?;
        Ok(b.dynamic_update_slice(x, frame, &[t, zero, zero])?)
    }
}

/// Lengths as i32, which the caller has checked where it could: those of a traced call are checked in the program.
fn length(c: &mut Call<'_>, lengths: &Tensor, most: i64, name: &str) -> Result<Value> {
    let value = c.value(lengths, DType::Int64)?;
    let wrong = formula(c.b, [value], |[n]| n.lt(n.splat_int(0)) | n.gt(n.splat_int(most)))?;
    let wrong = any(c.b, wrong)?;
    c.check(wrong, CheckKind::Runtime, format!("Expected {name} to have values from 0 to {most}"));
    c.convert(value, DType::Int32)
}

/// The labels of the targets at odd places, blanks at the others and beyond the end: [N, S].
fn with_blanks(
    c: &mut Call<'_>,
    targets: &Tensor,
    place: Value,
    last: Value,
    blank: i64,
    labels: i64,
) -> Result<Value> {
    let value = c.value(targets, DType::Int64)?;
    // Between two labels and around them.
    let filler = c.full(Number::Int(blank), DType::Int64, &[])?;
    let wide = c.b.pad(value, filler, &[0, 1], &[0, 1], &[0, 1])?;
    let wide = slice_to(c.b, wide, c.b.dims(place)[1])?;
    let beyond = c.b.compare(place, last, Direction::Gt)?;
    let filler = convert::splat(c.b, wide, Number::Int(blank))?;
    let wide = c.b.select(beyond, filler, wide)?;
    let outside = formula(c.b, [wide], |[l]| l.lt(l.splat_int(0)) | l.ge(l.splat_int(labels)))?;
    let outside = any(c.b, outside)?;
    c.check(outside, CheckKind::Index, "ctc_loss: a target is out of the range of labels");
    let clamped = formula(c.b, [wide], |[l]| l.max(l.splat_int(0)).min(l.splat_int(labels - 1)))?;
    c.convert(clamped, index_dtype(labels))
}

/// Padding of no targets at all gives one blank too many.
fn slice_to(b: &mut Builder, x: Value, places: i64) -> Result<Value> {
    slice_dim(b, x, 1, 0, places, 1)
}

/// Between different labels the blank may be left out.
fn skips(b: &mut Builder, label: Value, place: Value) -> Result<Value> {
    let none = convert::constant(b, Number::Int(-1), convert::dtype_of(b, label)?)?;
    let before = later(b, label, 2, none)?;
    formula(b, [label, before, place], |[label, before, place]| {
        label.ne(before) & place.gt(place.splat_int(1))
    })
}

/// `x` [N, S] moved `by` places towards the end, or towards the start where `by` is negative.
fn later(b: &mut Builder, x: Value, by: i64, filler: Value) -> Result<Value> {
    Ok(b.pad(x, filler, &[0, by], &[0, -by], &[0, 0])?)
}

/// `log(sum(exp(x)))`, where -inf has no part.
fn log_sum<'f>(terms: [Expr<'f>; 3]) -> Expr<'f> {
    let [x, y, z] = terms;
    let most = x.max(y).max(z);
    let most = most.eq(most.splat(f64::NEG_INFINITY)).select(most.splat(0.0), most);
    ((x - most).exp() + (y - most).exp() + (z - most).exp()).log() + most
}

/// Log probabilities of the prefixes (equations 6 and 7) in each frame, [T, N, S].
fn forward_variables(c: &mut Call<'_>, a: &Alignment) -> Result<Value> {
    let none = c.full(Number::Float(f64::NEG_INFINITY), a.dtype, &a.sizes())?;
    let stack = c.full(Number::Float(f64::NEG_INFINITY), a.dtype, &[a.frames, a.batch, a.places])?;
    let zero = c.b.zero(DType::Int32.element_type())?;
    let states = c.b.while_loop(
        &[zero, none, stack],
        |b, state| {
            let frames = b.constant(DType::Int32.element_type(), a.frames)?;
            b.compare(state[0], frames, Direction::Lt)
        },
        |b, state| {
            let (t, alpha, stack) = (state[0], state[1], state[2]);
            let mut step = || -> Result<Vec<Value>> {
                let filler = convert::constant(b, Number::Float(f64::NEG_INFINITY), a.dtype)?;
                let (one, two) = (later(b, alpha, 1, filler)?, later(b, alpha, 2, filler)?);
                let emission = a.frame(b, a.emission, t)?;
                let now = b.broadcast_scalar(t, &a.sizes())?;
                let values = [alpha, one, two, a.skips, emission, now, a.length, a.place];
                let alpha = formula(b, values, |[alpha, one, two, skips, emission, t, length, place]| {
                    let none = alpha.splat(f64::NEG_INFINITY);
                    let reached = log_sum([alpha, one, skips.select(two, none)]);
                    let start = place.lt(place.splat_int(2)).select(alpha.splat(0.0), none);
                    let reached = t.eq(t.splat_int(0)).select(start, reached) + emission;
                    // The variables of the last frame stay.
                    t.lt(length).select(reached, alpha)
                })?;
                let stack = a.put_frame(b, stack, t, alpha)?;
                let one = b.one(DType::Int32.element_type())?;
                Ok(vec![b.add(t, one)?, alpha, stack])
            };
            step().map_err(stablehlo::Error::body)
        },
    )?;
    Ok(states[2])
}

/// aten::_ctc_loss.Tensor(log_probs, targets, input_lengths, target_lengths, blank, zero_infinity). Outputs: the
/// negative log likelihoods [N], the forward variables [N, T, S].
fn forward(c: &mut Call<'_>) -> Result<Outputs> {
    let a = Alignment::parse(c, 0, 4)?;
    let alphas = forward_variables(c, &a)?;
    let log_alpha = c.b.transpose(alphas, &[1, 0, 2])?;
    let zeros = c.full(Number::Int(0), a.dtype, &[a.batch])?;
    let likelihood = if a.frames == 0 {
        zeros
    } else {
        let t = c.b.constant(DType::Int32.element_type(), a.frames - 1)?;
        let alpha = a.frame(c.b, alphas, t)?;
        let ends = formula(c.b, [alpha, a.place, a.last], |[alpha, place, last]| {
            let end = place.eq(last) | place.eq(last - last.splat_int(1));
            end.select(alpha, alpha.splat(f64::NEG_INFINITY))
        })?;
        let most = c.b.reduce_max(ends, &[1])?;
        let most = formula(c.b, [most], |[most]| {
            most.eq(most.splat(f64::NEG_INFINITY)).select(most.splat(0.0), most)
        })?;
        let spread = c.b.broadcast_in_dim(most, &a.sizes(), &[0])?;
        let terms = formula(c.b, [ends, spread], |[x, most]| (x - most).exp())?;
        let sum = c.b.reduce_add(terms, &[1])?;
        formula(c.b, [sum, most], |[sum, most]| sum.log() + most)?
    };
    // Without frames only an empty target is possible.
    let loss = formula(c.b, [likelihood, a.lengths, a.target_lengths], |[likelihood, length, targets]| {
        let zero = likelihood.splat(0.0);
        let none = targets.eq(targets.splat_int(0)).select(zero, zero.splat(f64::INFINITY));
        length.eq(length.splat_int(0)).select(none, -likelihood)
    })?;
    Ok([as_output(c, 0, loss)?, as_output(c, 1, log_alpha)?].into())
}

/// How likely a sequence is at a place in a frame given its target, [T, N, S]: from the backward variables (equations
/// 10 and 11) and the forward ones.
fn occupancy(c: &mut Call<'_>, a: &Alignment, log_alpha: Value, loss: Value) -> Result<Value> {
    let none = c.full(Number::Float(f64::NEG_INFINITY), a.dtype, &a.sizes())?;
    let stack = c.full(Number::Int(0), a.dtype, &[a.frames, a.batch, a.places])?;
    let start = c.b.constant(DType::Int32.element_type(), a.frames - 1)?;
    // A place is left for the one two after where that one may be reached so.
    let no = c.full(Number::Bool(false), DType::Bool, &[])?;
    let leaves = later(c.b, a.skips, -2, no)?;
    let states = c.b.while_loop(
        &[start, none, stack],
        |b, state| {
            let zero = b.zero(DType::Int32.element_type())?;
            b.compare(state[0], zero, Direction::Ge)
        },
        |b, state| {
            let (t, beta, stack) = (state[0], state[1], state[2]);
            let mut step = || -> Result<Vec<Value>> {
                let filler = convert::constant(b, Number::Float(f64::NEG_INFINITY), a.dtype)?;
                let (one, two) = (later(b, beta, -1, filler)?, later(b, beta, -2, filler)?);
                let emission = a.frame(b, a.emission, t)?;
                let now = b.broadcast_scalar(t, &a.sizes())?;
                let values = [beta, one, two, leaves, now, a.length, a.place, a.last];
                let rest = formula(b, values, |[beta, one, two, leaves, t, length, place, last]| {
                    let none = beta.splat(f64::NEG_INFINITY);
                    let rest = log_sum([beta, one, leaves.select(two, none)]);
                    let end = place.eq(last) | place.eq(last - last.splat_int(1));
                    let end = end.select(beta.splat(0.0), none);
                    let rest = t.eq(length - length.splat_int(1)).select(end, rest);
                    (place.le(last) & t.lt(length)).select(rest, none)
                })?;
                let alpha = a.frame(b, log_alpha, t)?;
                let occupancy =
                    formula(b, [alpha, rest, loss], |[alpha, rest, loss]| (alpha + rest + loss).exp())?;
                let stack = a.put_frame(b, stack, t, occupancy)?;
                let beta = b.add(rest, emission)?;
                let one = b.one(DType::Int32.element_type())?;
                Ok(vec![b.subtract(t, one)?, beta, stack])
            };
            step().map_err(stablehlo::Error::body)
        },
    )?;
    Ok(states[2])
}

/// aten::_ctc_loss_backward.Tensor(grad, log_probs, targets, input_lengths, target_lengths, losses, log_alpha, blank,
/// zero_infinity): the gradient by what a log_softmax gave log_probs for, as PyTorch defines it (equation 16).
fn backward(c: &mut Call<'_>) -> Result<Outputs> {
    let (grad, loss, log_alpha) = (c.tensor(0)?, c.tensor(5)?, c.tensor(6)?);
    let out = c.out(0)?.clone();
    let zero_infinity = c.bool(8)?;
    let a = Alignment::parse(c, 1, 7)?;
    if out.sizes.contains(&0) {
        return Ok(c.full(Number::Int(0), out.dtype, &out.sizes)?.into());
    }
    let log_alpha = c.value(&log_alpha, a.dtype)?;
    let log_alpha = c.b.transpose(log_alpha, &[1, 0, 2])?;
    let loss = c.value(&loss, a.dtype)?;
    let loss_places = c.b.broadcast_in_dim(loss, &a.sizes(), &[0])?;
    let occupancy = occupancy(c, &a, log_alpha, loss_places)?;
    let sizes = Dims::from_slice(&[a.frames, a.batch, a.labels]);
    let zeros = c.full(Number::Int(0), a.dtype, &sizes)?;
    let by_label = scatter_along(c.b, zeros, 2, a.label, occupancy, Combine::Add)?;
    let grad = c.value(&grad, a.dtype)?;
    let spread = |b: &mut Builder, value: Value| b.broadcast_in_dim(value, &sizes, &[1]);
    let (grad, loss, length) = (spread(c.b, grad)?, spread(c.b, loss)?, spread(c.b, a.lengths)?);
    let frame = iota(c.b, DType::Int32, &sizes, 0)?;
    let value = formula(
        c.b,
        [a.log_probs, by_label, grad, loss, length, frame],
        |[log_probs, occupancy, grad, loss, length, frame]| {
            let zero = grad.splat(0.0);
            let impossible = loss.eq(loss.splat(f64::INFINITY));
            let value = (log_probs.exp() - occupancy) * grad;
            let value = if zero_infinity {
                impossible.select(zero, value)
            } else {
                impossible.select(zero.splat(f64::NAN), value)
            };
            frame.lt(length).select(value, zero)
        },
    )?;
    Ok(c.convert(value, out.dtype)?.into())
}
