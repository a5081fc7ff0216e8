//! Strided views over a dense buffer, expressed as reshape, slice, transpose and broadcast.
//!
//! A [`Recipe`] says how a tensor with given sizes and strides lies in a row-major base. It does not contain the
//! storage offset: the offset decomposes into one start per base dimension, and the starts are run-time operands, so
//! that `x[i]` is one program for every `i`. A view has several recipes, tried in order, because not every offset fits
//! the first: slices along the base's own dimensions, the same over merged dimensions, and at last a gather by
//! linear index, which expresses everything.

use ops::Dims;
use smallvec::SmallVec;

use crate::layout::row_major_strides;

/// How one dimension of the refined base is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Elements taken.
    pub size: i64,
    /// Distance between them.
    pub step: i64,
}

/// One dimension of the view before broadcasting: refined dimensions, slowest first, that merge into it.
pub type Merge = SmallVec<[usize; 2]>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slices {
    /// The base, reshaped; row-major.
    pub refined: Dims,
    pub strides: Dims,
    pub cuts: SmallVec<[Cut; 6]>,
    /// For each view dimension that is neither of size 1 nor expanded: its logical position and the refined
    /// dimensions that form it.
    pub dims: SmallVec<[(usize, Merge); 6]>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Recipe {
    Slices(Box<Slices>),
    /// Linear indices into the flat base: offset + sum of index * stride.
    Gather,
}

/// The recipes of a view in the order in which offsets are tried; the last is always [`Recipe::Gather`].
pub fn recipes(base: &[i64], sizes: &[i64], strides: &[i64]) -> Vec<Recipe> {
    if sizes.contains(&0) {
        // Nothing is read or written, and strides may be anything.
        return vec![Recipe::Gather];
    }
    if sizes.contains(&0) || base.contains(&0) {
        // There is nothing to place.
        return vec![Recipe::Gather];
    }
    let mut found = Vec::new();
    let mut base: Dims = base.iter().copied().filter(|&n| n != 1).collect();
    if base.is_empty() {
        base.push(1);
    }
    loop {
        let failed_at = match slices(&base, sizes, strides) {
            Ok(recipe) => {
                let recipe = Recipe::Slices(Box::new(recipe));
                if found.last() != Some(&recipe) {
                    found.push(recipe);
                }
                base.len() - 1
            }
            Err(Blocked::Never) => break,
            Err(Blocked::At(dim)) => dim,
        };
        if base.len() == 1 {
            break;
        }
        // Merge the blocking dimension with its outer neighbour and try again.
        let dim = failed_at.max(1);
        base[dim - 1] *= base[dim];
        base.remove(dim);
    }
    found.push(Recipe::Gather);
    found
}

enum Blocked {
    /// The view does not fit this base dimension; merged with its outer neighbour it may.
    At(usize),
    /// Overlapping or irregular: no base shape helps.
    Never,
}

fn slices(base: &[i64], sizes: &[i64], strides: &[i64]) -> Result<Slices, Blocked> {
    let mut order: SmallVec<[usize; 6]> =
        (0..sizes.len()).filter(|&d| sizes[d] != 1 && strides[d] != 0).collect();
    if order.iter().any(|&d| strides[d] < 0) {
        return Err(Blocked::Never);
    }
    order.sort_by_key(|&d| std::cmp::Reverse(strides[d]));
    for pair in order.windows(2) {
        if strides[pair[1]] * sizes[pair[1]] > strides[pair[0]] {
            return Err(Blocked::Never);
        }
    }
    let refined = refine(base, sizes, strides, &order)?;
    let refined_strides = row_major_strides(&refined);
    let mut cuts: SmallVec<[Cut; 6]> = SmallVec::from_elem(Cut { size: 1, step: 1 }, refined.len());
    let mut taken: SmallVec<[bool; 6]> = SmallVec::from_elem(false, refined.len());
    let mut dims: SmallVec<[(usize, Merge); 6]> = SmallVec::new();
    for &d in &order {
        let home = home(&refined_strides, strides[d]);
        let step = strides[d] / refined_strides[home];
        if strides[d] % refined_strides[home] != 0 {
            return Err(Blocked::At(home.max(1)));
        }
        let mut merge = Merge::new();
        let mut remaining = sizes[d];
        let mut dim = home;
        loop {
            if std::mem::replace(&mut taken[dim], true) {
                return Err(Blocked::At(dim.max(1)));
            }
            merge.insert(0, dim);
            let step = if dim == home { step } else { 1 };
            if (remaining - 1) * step < refined[dim] {
                cuts[dim] = Cut { size: remaining, step };
                break;
            }
            if step != 1 || remaining % refined[dim] != 0 || dim == 0 {
                return Err(Blocked::At(dim.max(1)));
            }
            cuts[dim] = Cut { size: refined[dim], step: 1 };
            remaining /= refined[dim];
            dim -= 1;
        }
        dims.push((d, merge));
    }
    dims.sort_by_key(|(d, _)| *d);
    Ok(Slices { refined, strides: refined_strides, cuts, dims })
}

/// Splits base dimensions that carry several view dimensions.
fn refine(base: &[i64], sizes: &[i64], strides: &[i64], order: &[usize]) -> Result<Dims, Blocked> {
    let base_strides = row_major_strides(base);
    let mut refined = Dims::new();
    for dim in 0..base.len() {
        // Strides, in units of this dimension, of the view dimensions at home here; slowest first.
        let mut units: SmallVec<[i64; 6]> = SmallVec::new();
        let mut crosses = false;
        for &d in order {
            if home(&base_strides, strides[d]) == dim {
                if strides[d] % base_strides[dim] != 0 {
                    return Err(Blocked::At(dim.max(1)));
                }
                let unit = strides[d] / base_strides[dim];
                crosses |= unit > 1 && unit * (sizes[d] - 1) >= base[dim];
                units.push(unit);
            }
        }
        if units.len() < 2 && !crosses {
            refined.push(base[dim]);
            continue;
        }
        let mut outer = base[dim];
        for &unit in &units {
            if unit == 1 {
                continue;
            }
            if outer % unit != 0 {
                return Err(Blocked::At(dim.max(1)));
            }
            refined.push(outer / unit);
            outer = unit;
        }
        refined.push(outer);
    }
    Ok(refined)
}

/// The innermost dimension whose stride does not exceed `stride`, from the outside.
fn home(strides: &[i64], stride: i64) -> usize {
    strides.iter().position(|&s| s <= stride).unwrap_or(strides.len() - 1)
}

impl Slices {
    /// One start per refined dimension, or `None` when this recipe cannot express the offset.
    pub fn starts(&self, mut offset: i64) -> Option<Dims> {
        let mut starts = Dims::with_capacity(self.refined.len());
        for ((&stride, &extent), cut) in self.strides.iter().zip(&self.refined).zip(&self.cuts) {
            let start = offset / stride;
            offset %= stride;
            if start + (cut.size - 1) * cut.step >= extent {
                return None;
            }
            starts.push(start);
        }
        // A merged view dimension must cover its inner refined dimensions from their beginning.
        for (_, merge) in &self.dims {
            for &dim in &merge[1..] {
                if starts[dim] != 0 {
                    return None;
                }
            }
        }
        Some(starts)
    }

    /// Whether the cut of `dim` can start anywhere but at 0.
    pub fn is_movable(&self, dim: usize) -> bool {
        let cut = self.cuts[dim];
        (cut.size - 1) * cut.step + 1 < self.refined[dim]
            && !self.dims.iter().any(|(_, merge)| merge[1..].contains(&dim))
    }

    pub fn covers_base(&self) -> bool {
        self.cuts.iter().zip(&self.refined).all(|(cut, &extent)| cut.size == extent && cut.step == 1)
    }
}

/// The first recipe that can express `offset`, and its starts (empty for a gather).
pub fn select(recipes: &[Recipe], offset: i64) -> (usize, Dims) {
    for (i, recipe) in recipes.iter().enumerate() {
        match recipe {
            Recipe::Slices(slices) => {
                if let Some(starts) = slices.starts(offset) {
                    return (i, starts);
                }
            }
            Recipe::Gather => return (i, Dims::new()),
        }
    }
    unreachable!("recipes always end with a gather")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads the view through the recipe on the host: linear base indices in logical order.
    fn indices(recipe: &Slices, starts: &[i64], sizes: &[i64]) -> Vec<i64> {
        let mut out = Vec::new();
        let total: i64 = sizes.iter().product();
        for linear in 0..total {
            let mut rest = linear;
            let mut index = vec![0; sizes.len()];
            for d in (0..sizes.len()).rev() {
                index[d] = rest % sizes[d];
                rest /= sizes[d];
            }
            let mut at: i64 = starts.iter().zip(&recipe.strides).map(|(s, st)| s * st).sum();
            for (d, merge) in &recipe.dims {
                let mut i = index[*d];
                for &dim in merge.iter().rev() {
                    let cut = recipe.cuts[dim];
                    at += (i % cut.size) * cut.step * recipe.strides[dim];
                    i /= cut.size;
                }
            }
            out.push(at);
        }
        out
    }

    fn strided(sizes: &[i64], strides: &[i64], offset: i64) -> Vec<i64> {
        let total: i64 = sizes.iter().product();
        (0..total)
            .map(|linear| {
                let mut rest = linear;
                let mut at = offset;
                for d in (0..sizes.len()).rev() {
                    at += rest % sizes[d] * strides[d];
                    rest /= sizes[d];
                }
                at
            })
            .collect()
    }

    fn check(base: &[i64], sizes: &[i64], strides: &[i64], offset: i64) -> Recipe {
        let all = recipes(base, sizes, strides);
        let (i, starts) = select(&all, offset);
        if let Recipe::Slices(slices) = &all[i] {
            assert_eq!(indices(slices, &starts, sizes), strided(sizes, strides, offset));
        }
        all[i].clone()
    }

    fn is_slices_of(recipe: &Recipe, refined: &[i64]) -> bool {
        matches!(recipe, Recipe::Slices(s) if s.refined.as_slice() == refined)
    }

    #[test]
    fn natural_views_keep_the_base_shape() {
        assert!(is_slices_of(&check(&[8, 128, 64], &[128, 64], &[64, 1], 3 * 8192), &[8, 128, 64]));
        assert!(is_slices_of(&check(&[8, 128, 64], &[8, 64], &[8192, 1], 64 * 5), &[8, 128, 64]));
        assert!(is_slices_of(&check(&[8, 128, 64], &[64, 128, 8], &[1, 64, 8192], 0), &[8, 128, 64]));
        assert!(is_slices_of(&check(&[10], &[5], &[2], 1), &[10]));
        assert!(is_slices_of(&check(&[8, 128, 64], &[1024, 64], &[64, 1], 0), &[8, 128, 64]));
        assert!(is_slices_of(&check(&[6], &[2, 3], &[3, 1], 0), &[2, 3]));
        assert!(is_slices_of(&check(&[4, 6], &[4, 2, 3], &[6, 3, 1], 0), &[4, 2, 3]));
        assert!(is_slices_of(&check(&[3, 4], &[3, 4, 5], &[4, 1, 0], 0), &[3, 4]));
    }

    #[test]
    fn empty_views_and_bases_need_no_slices() {
        assert_eq!(recipes(&[0, 3], &[0], &[1]), [Recipe::Gather]);
        assert_eq!(recipes(&[2, 0], &[3, 0], &[0, 1]), [Recipe::Gather]);
        assert_eq!(recipes(&[4], &[0, 2], &[2, 1]), [Recipe::Gather]);
    }

    #[test]
    fn flat_slices_merge_dimensions() {
        assert!(is_slices_of(&check(&[3, 4], &[5], &[1], 3), &[12]));
        assert!(is_slices_of(&check(&[3, 4], &[2], &[1], 4), &[3, 4]));
        assert!(is_slices_of(&check(&[3, 4], &[2], &[1], 3), &[12]));
    }

    #[test]
    fn empty_views_have_any_strides() {
        assert_eq!(check(&[2, 4, 6, 8], &[2, 4, 0, 8], &[192, 48, 8, 1], 0), Recipe::Gather);
        assert_eq!(check(&[12], &[0, 3], &[1, 0], 5), Recipe::Gather);
    }

    #[test]
    fn overlapping_views_gather() {
        assert_eq!(check(&[10], &[4, 3], &[2, 1], 0), Recipe::Gather);
        assert_eq!(check(&[4, 4], &[3, 3], &[3, 1], 0), Recipe::Gather);
    }

    #[test]
    fn a_diagonal_is_a_stepped_slice() {
        assert!(is_slices_of(&check(&[4, 4], &[4], &[5], 0), &[16]));
    }

    #[test]
    fn every_view_of_small_bases_reads_the_right_elements() {
        for base in [&[12][..], &[3, 4], &[2, 2, 3], &[1, 12], &[4, 1, 3]] {
            for s0 in 1..=4 {
                for s1 in 1..=4 {
                    for t0 in 0..=6 {
                        for t1 in 0..=6 {
                            for offset in 0..12 {
                                if offset + (s0 - 1) * t0 + (s1 - 1) * t1 < 12 {
                                    check(base, &[s0, s1], &[t0, t1], offset);
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}
