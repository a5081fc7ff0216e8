//! How a storage's bytes lie in its device buffer.
//!
//! A buffer keeps the shape and dtype of the dense tensor that created it, dimensions in memory order (row-major, the
//! last one fastest). Layouts are interned: comparing two is comparing two integers.

use std::sync::LazyLock;

use ops::{DType, Dims};
use parking_lot::RwLock;
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

/// An interned [`Layout`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LayoutId(pub u32);

/// Shape of a device buffer.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Layout {
    pub dtype: DType,
    /// Logical extents in memory order.
    pub dims: Dims,
    /// Extents of the buffer itself, at least `dims`; what lies beyond the logical extents is padding whose content
    /// consumers must mask. Equal to `dims` until a producer pads.
    pub physical: Dims,
}

impl Layout {
    pub fn dense(dtype: DType, dims: Dims) -> Self {
        Layout { dtype, physical: dims.clone(), dims }
    }

    pub fn is_padded(&self) -> bool {
        self.dims != self.physical
    }

    pub fn elements(&self) -> i64 {
        self.dims.iter().product()
    }

    pub fn bytes(&self) -> usize {
        self.elements() as usize * self.dtype.size()
    }

    pub fn tensor_type(&self) -> stablehlo::TensorType {
        stablehlo::TensorType::new(self.dtype.element_type(), &self.physical)
    }
}

#[derive(Default)]
struct Interner {
    layouts: Vec<&'static Layout>,
    ids: FxHashMap<&'static Layout, LayoutId>,
}

static INTERNER: LazyLock<RwLock<Interner>> = LazyLock::new(Default::default);

/// Interned layouts live as long as the process: their number is that of distinct buffer shapes.
pub fn intern(layout: Layout) -> LayoutId {
    if let Some(id) = INTERNER.read().ids.get(&layout) {
        return *id;
    }
    let mut interner = INTERNER.write();
    if let Some(id) = interner.ids.get(&layout) {
        return *id;
    }
    let id = LayoutId(interner.layouts.len() as u32);
    let layout: &'static Layout = Box::leak(Box::new(layout));
    interner.layouts.push(layout);
    interner.ids.insert(layout, id);
    id
}

pub fn get(id: LayoutId) -> &'static Layout {
    INTERNER.read().layouts[id.0 as usize]
}

/// Row-major strides of `dims`, in elements.
pub fn row_major_strides(dims: &[i64]) -> Dims {
    let mut strides = Dims::from_elem(1, dims.len());
    for i in (0..dims.len().saturating_sub(1)).rev() {
        strides[i] = strides[i + 1] * dims[i + 1].max(1);
    }
    strides
}

/// The order of dimensions in memory (slowest first) when the tensor is dense and does not overlap itself;
/// `None` for tensors with gaps or overlap. Dimensions of size 1 fit anywhere: their strides place them.
pub fn memory_order(sizes: &[i64], strides: &[i64]) -> Option<SmallVec<[usize; 6]>> {
    let logical = || (0..sizes.len()).collect();
    if sizes.contains(&0) || is_row_major(sizes, strides) {
        return Some(logical());
    }
    let mut order: SmallVec<[usize; 6]> = logical();
    order.sort_by_key(|&d| std::cmp::Reverse(strides[d]));
    let mut expected = 1;
    for &d in order.iter().rev().filter(|&&d| sizes[d] != 1) {
        if strides[d] != expected {
            return None;
        }
        expected *= sizes[d];
    }
    Some(order)
}

/// Whether a 4-d or 5-d tensor's strides suggest channels-last, as `Tensor::suggest_memory_format` has it.
pub fn suggests_channels_last(sizes: &[i64], strides: &[i64]) -> bool {
    let rank = sizes.len();
    if !(4..=5).contains(&rank) || strides[1] == 0 {
        return false;
    }
    let mut least = 0;
    for d in std::iter::once(1).chain((2..rank).rev()).chain([0]) {
        if sizes[d] == 0 || strides[d] < least {
            return false;
        }
        // An N11C tensor is ambiguous; contiguous wins.
        if d == 0 && least == strides[1] {
            return false;
        }
        least = strides[d];
        if sizes[d] > 1 {
            least *= sizes[d];
        }
    }
    true
}

pub fn channels_last_strides(sizes: &[i64]) -> Dims {
    let mut strides = Dims::from_elem(0, sizes.len());
    let mut stride = 1;
    for d in std::iter::once(1).chain((2..sizes.len()).rev()).chain([0]) {
        strides[d] = stride;
        stride *= sizes[d].max(1);
    }
    strides
}

pub fn is_row_major(sizes: &[i64], strides: &[i64]) -> bool {
    let mut expected = 1;
    for d in (0..sizes.len()).rev() {
        if sizes[d] != 1 && strides[d] != expected {
            return false;
        }
        expected *= sizes[d];
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(sizes: &[i64], strides: &[i64]) -> Option<Vec<usize>> {
        memory_order(sizes, strides).map(|o| o.to_vec())
    }

    #[test]
    fn memory_order_of_dense_tensors() {
        assert_eq!(order(&[2, 3, 4], &[12, 4, 1]), Some(vec![0, 1, 2]));
        assert_eq!(order(&[2, 3, 4, 5], &[60, 1, 15, 3]), Some(vec![0, 2, 3, 1]));
        assert_eq!(order(&[2, 1, 4], &[4, 77, 1]), Some(vec![0, 1, 2]));
        assert_eq!(order(&[], &[]), Some(vec![]));
        assert_eq!(order(&[2, 3], &[4, 1]), None);
        assert_eq!(order(&[2, 2], &[0, 1]), None);
        assert_eq!(order(&[1, 3, 1, 2], &[6, 1, 6, 3]), Some(vec![0, 2, 3, 1]));
        assert_eq!(order(&[3, 2, 1], &[1, 3, 1]), Some(vec![1, 0, 2]));
    }

    #[test]
    fn interning_is_stable() {
        let a = intern(Layout::dense(DType::Float32, Dims::from_slice(&[2, 3])));
        let b = intern(Layout::dense(DType::Float32, Dims::from_slice(&[2, 3])));
        assert_eq!(a, b);
        assert_ne!(a, intern(Layout::dense(DType::Int64, Dims::from_slice(&[2, 3]))));
        assert_eq!(get(a).dims.as_slice(), &[2, 3]);
    }
}
