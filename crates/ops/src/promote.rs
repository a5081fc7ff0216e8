//! PyTorch's type promotion: `c10::promoteTypes` and `at::native::result_type`.

use crate::dtype::{Category, DType};
use DType::*;

/// `c10::promoteTypes`. `None` where PyTorch raises (float8 and barebones unsigned mixes) or answers with a
/// type that device programs do not have (complex32).
pub fn promote_types(a: DType, b: DType) -> Option<DType> {
    if a == b {
        return Some(a);
    }
    if a.is_float8() || b.is_float8() {
        return None;
    }
    if a.is_barebones_unsigned() || b.is_barebones_unsigned() {
        return match (a.is_float(), b.is_float()) {
            (true, false) => Some(a),
            (false, true) => Some(b),
            _ => None,
        };
    }
    let (low, high) = if a.category() <= b.category() { (a, b) } else { (b, a) };
    match (low.category(), high.category()) {
        (Category::Complex, _) => Some(Complex128),
        (Category::Float, Category::Complex) => {
            Some(if low == Float64 || high == Complex128 { Complex128 } else { Complex64 })
        }
        (Category::Float, Category::Float) => Some(if low == Float64 || high == Float64 {
            Float64
        } else {
            // bf16 with f16 as well: neither holds the other.
            Float32
        }),
        (Category::Int, Category::Int) => Some(promote_integers(low, high)),
        _ => Some(high),
    }
}

fn promote_integers(a: DType, b: DType) -> DType {
    match (a, b) {
        (UInt8, Int8) | (Int8, UInt8) => Int16,
        _ if a.size() >= b.size() => a,
        _ => b,
    }
}

/// How an operand takes part in promotion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Participant {
    /// A tensor with at least one dimension.
    Dimensioned(DType),
    /// A 0-dim tensor: by category only, against dimensioned ones.
    ZeroDim(DType),
    /// A Python number: by category only, its floats are of the default dtype.
    Wrapped(DType),
}

/// `at::native::result_type`; `None` where PyTorch raises, or without participants.
pub fn result_type(participants: impl IntoIterator<Item = Participant>, default: DType) -> Option<DType> {
    let (mut dim, mut zero, mut wrapped) = (None, None, None);
    for participant in participants {
        match participant {
            Participant::Dimensioned(dtype) => dim = Some(join(dim, dtype)?),
            Participant::ZeroDim(dtype) => zero = Some(join(zero, dtype)?),
            Participant::Wrapped(dtype) => {
                let current = match dtype.category() {
                    Category::Complex => default.complex()?,
                    Category::Float => default,
                    _ => dtype,
                };
                wrapped = Some(join(wrapped, current)?);
            }
        }
    }
    combine(dim, combine(zero, wrapped)?)?
}

/// `None` when PyTorch raises; the inner option is "no participant".
fn combine(higher: Option<DType>, lower: Option<DType>) -> Option<Option<DType>> {
    match (higher, lower) {
        (Some(higher), Some(lower)) => combine_categories(higher, lower).map(Some),
        (higher, lower) => Some(higher.or(lower)),
    }
}

fn join(so_far: Option<DType>, next: DType) -> Option<DType> {
    so_far.map_or(Some(next), |so_far| promote_types(so_far, next))
}

fn combine_categories(higher: DType, lower: DType) -> Option<DType> {
    match higher.category() {
        Category::Complex => Some(higher),
        Category::Float if lower.is_complex() => higher.complex(),
        Category::Float => Some(higher),
        Category::Bool => promote_types(higher, lower),
        Category::Int if lower.is_float() || lower.is_complex() => promote_types(higher, lower),
        Category::Int => Some(higher),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Written by torch 2.15: `torch.promote_types`, and `torch.result_type` of a 1-dim tensor with a 0-dim one and
    /// of 1-dim and 0-dim tensors with Python numbers.
    const TABLE: &str = include_str!("../tests/promotion.txt");

    fn parse(name: &str) -> Option<DType> {
        DType::ALL.into_iter().find(|dtype| format!("{dtype:?}") == name)
    }

    #[test]
    fn agrees_with_torch() {
        let number = |kind: &str| {
            Participant::Wrapped(match kind {
                "bool" => Bool,
                "int" => Int64,
                "float" => Float64,
                _ => Complex128,
            })
        };
        let mut lines = 0;
        for line in TABLE.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let a = parse(words[1]).unwrap();
            match words[0] {
                "promote" => {
                    assert_eq!(promote_types(a, parse(words[2]).unwrap()), parse(words[3]), "{line}")
                }
                "zero" => {
                    let b = Participant::ZeroDim(parse(words[2]).unwrap());
                    assert_eq!(
                        result_type([Participant::Dimensioned(a), b], Float32),
                        parse(words[3]),
                        "{line}"
                    );
                }
                _ => {
                    let w = number(words[2]);
                    assert_eq!(
                        result_type([w, Participant::Dimensioned(a)], Float32),
                        parse(words[3]),
                        "{line}"
                    );
                    assert_eq!(result_type([Participant::ZeroDim(a), w], Float32), parse(words[4]), "{line}");
                }
            }
            lines += 1;
        }
        assert!(lines > 450);
    }

    #[test]
    fn wrapped_floats_have_the_default_dtype() {
        let participants = [Participant::Dimensioned(Int64), Participant::Wrapped(Float64)];
        assert_eq!(result_type(participants, Float32), Some(Float32));
        assert_eq!(result_type(participants, BFloat16), Some(BFloat16));
        assert_eq!(
            result_type([Participant::Wrapped(Bool), Participant::Wrapped(Int64)], Float32),
            Some(Int64)
        );
    }
}
