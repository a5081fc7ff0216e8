"""Sparse tensors (COO and CSR): what reads their elements, composed of dense operators on indices and values.

Their structure is PyTorch's own C++, which is the same for every device. Operators that are not here raise
NotImplementedError.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ._cpu_kernels import kernel_of_the_cpu

_aten = torch.ops.aten


def _linear(indices: Tensor, sizes: torch.Size) -> Tensor:
    """Row-major position of each column of `indices`, [dims, n]."""
    strides = [math.prod(sizes[dim + 1 :]) for dim in range(len(sizes))]
    weights = torch.tensor(strides, dtype=torch.int64).to(indices.device)
    return (indices * weights[:, None]).sum(0)


def _positions(linear: Tensor, sizes: torch.Size) -> Tensor:
    """The inverse of `_linear`."""
    columns = []
    for size in reversed(sizes):
        columns.append(linear % size)
        linear = linear // size
    return torch.stack(columns[::-1]) if columns else linear.new_empty(0, linear.numel())


def _coo(like: Tensor, indices: Tensor, values: Tensor) -> Tensor:
    """A coalesced tensor with the sizes of `like`."""
    return _aten._sparse_coo_tensor_with_dims_and_tensors(
        indices.size(0), values.dim() - 1, like.shape, indices, values,
        dtype=values.dtype, layout=torch.sparse_coo, device=values.device, is_coalesced=True,
    )  # fmt: skip


def coalesce(self: Tensor) -> Tensor:
    """Elements in order of their position, those of the same position added up."""
    indices, values = self._indices(), self._values()
    if self._nnz() < 2:
        return _coo(self, indices.clone(), values.clone())
    sizes = self.shape[: indices.size(0)]
    linear, places = torch.unique(_linear(indices, sizes), return_inverse=True)
    sums = values.new_zeros((linear.numel(), *values.shape[1:])).index_add_(0, places, values)
    return _coo(self, _positions(linear, sizes), sums)


def to_dense(self: Tensor, dtype: torch.dtype | None = None, masked_grad: bool | None = None) -> Tensor:
    values = self._values()
    dense = values.new_zeros(self.shape, dtype=dtype)
    return dense.index_put_(tuple(self._indices()), values.to(dense.dtype), accumulate=True)


def sparse_mask(self: Tensor, mask: Tensor, accumulate_matches: bool = False) -> Tensor:
    """The elements of a tensor, dense or COO, where the mask has some."""
    mask = mask.coalesce()
    indices = mask._indices()
    if self.layout == torch.strided:
        return _coo(self, indices.clone(), self[tuple(indices)])
    if self.layout != torch.sparse_coo or self.dense_dim() != mask.dense_dim():
        raise NotImplementedError(f"tpu: sparse_mask of a tensor of layout {self.layout}")
    self = self.coalesce()
    sizes = self.shape[: indices.size(0)]
    known, wanted = _linear(self._indices(), sizes), _linear(indices, sizes)
    values = self._values().new_zeros((wanted.numel(), *self._values().shape[1:]))
    if known.numel():
        places = torch.searchsorted(known, wanted).clamp_(max=known.numel() - 1)
        found = (known.index_select(0, places) == wanted).view(-1, *[1] * self.dense_dim())
        values = self._values().index_select(0, places).where(found, values)
    return _coo(self, indices.clone(), values)


def csr_to_dense(self: Tensor, dtype: torch.dtype | None = None, masked_grad: bool | None = None) -> Tensor:
    rows, columns = _csr_indices(self)
    dense = self.values().new_zeros(self.shape, dtype=dtype)
    return dense.index_put_((rows, columns), self.values().to(dense.dtype), accumulate=True)


def to_csr(self: Tensor, dense_dim: int | None = None) -> Tensor:
    """A matrix, dense or COO, as CSR."""
    if self.dim() != 2 or dense_dim:
        raise NotImplementedError("tpu: CSR of tensors that are not matrices of numbers")
    coo = (self.to_sparse() if self.layout == torch.strided else self).coalesce()
    rows, columns = coo._indices()
    starts = torch.searchsorted(rows.contiguous(), torch.arange(self.size(0) + 1, device=rows.device))
    return torch.sparse_csr_tensor(starts, columns, coo._values(), self.shape, check_invariants=False)


def _csr_indices(self: Tensor) -> tuple[Tensor, Tensor]:
    if self.layout != torch.sparse_csr or self.dim() != 2:
        raise NotImplementedError(
            f"tpu: {self.layout} of {self.dim()} dimensions; what works is a CSR matrix"
        )
    starts, columns = self.crow_indices(), self.col_indices()
    elements = torch.arange(columns.numel(), dtype=starts.dtype, device=starts.device)
    return torch.searchsorted(starts, elements, right=True) - 1, columns.long()


def _elements(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Rows, columns and values."""
    if matrix.layout == torch.sparse_csr:
        return *_csr_indices(matrix), matrix.values()
    if matrix.layout != torch.sparse_coo or matrix.sparse_dim() != 2 or matrix.dense_dim() != 0:
        raise NotImplementedError(f"tpu: products of {matrix.layout}")
    return *matrix._indices(), matrix._values()


def mm(self: Tensor, mat2: Tensor) -> Tensor:
    """Product of a sparse and a dense matrix, in either order, as a dense one; of two sparse ones, as a sparse one."""
    if self.layout == mat2.layout != torch.strided:
        product = sparse_mm(self, mat2)
        return product if self.layout == torch.sparse_coo else to_csr(product)
    if self.layout != torch.strided and mat2.layout != torch.strided:
        return _refuse(self, mat2)
    _check_inner_sizes(self, mat2)
    if self.layout == torch.strided:
        rows, columns, values = _elements(mat2)
        products = self.index_select(1, rows) * values
        return products.new_zeros(self.size(0), mat2.size(1)).index_add_(1, columns, products)
    rows, columns, values = _elements(self)
    products = values[:, None] * mat2.index_select(0, columns)
    return products.new_zeros(self.size(0), mat2.size(1)).index_add_(0, rows, products)


def _check_inner_sizes(self: Tensor, other: Tensor) -> None:
    if self.size(1) != other.size(0):
        shapes = " and ".join("x".join(map(str, matrix.shape)) for matrix in (self, other))
        raise RuntimeError(f"mat1 and mat2 shapes cannot be multiplied ({shapes})")


def sparse_mm(self: Tensor, other: Tensor) -> Tensor:
    """Product of two sparse matrices, coalesced: each element of `self` meets a row of `other`."""
    _check_inner_sizes(self, other)
    other = other.coalesce() if other.layout == torch.sparse_coo else other
    (rows, columns, values), (other_rows, other_columns, other_values) = _elements(self), _elements(other)
    if values.dtype != other_values.dtype:
        raise RuntimeError(f"mat1 dtype {values.dtype} does not match mat2 dtype {other_values.dtype}")
    starts = torch.searchsorted(other_rows.contiguous(), torch.arange(other.size(0) + 1, device=rows.device))
    met = starts.diff().index_select(0, columns)
    element = torch.repeat_interleave(met)
    # The first product of each element, and how far a product is behind it.
    first = (met.cumsum(0) - met).index_select(0, element)
    behind = torch.arange(element.numel(), device=rows.device) - first
    partner = starts.index_select(0, columns.index_select(0, element)) + behind
    products = values.index_select(0, element) * other_values.index_select(0, partner)
    indices = torch.stack([rows.index_select(0, element), other_columns.index_select(0, partner)])
    sizes = (self.size(0), other.size(1))
    return torch.sparse_coo_tensor(indices, products, sizes, check_invariants=False).coalesce()


def _refuse(self: Tensor, other: Tensor) -> Tensor:
    raise NotImplementedError(f"tpu: the product of matrices of layouts {self.layout} and {other.layout}")


def addmm(self: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    product = mm(mat1, mat2)
    if self.layout != torch.strided or product.layout != torch.strided:
        # How PyTorch multiplies sparse matrices.
        if self.layout == product.layout and self._nnz() == 0 and alpha == 1:
            return product
        raise NotImplementedError("tpu: addmm with a sparse matrix and a sparse product")
    product = product if alpha == 1 else product * alpha
    # What is multiplied by 0 counts as 0, even NaN.
    return product if beta == 0 else (self if beta == 1 else self * beta) + product


def mul(self: Tensor, other: Tensor | float) -> Tensor:
    """By a number."""
    if self.layout == torch.strided:
        self, other = other, self
    if isinstance(other, Tensor) and (other.layout != torch.strided or other.dim() != 0):
        raise NotImplementedError("tpu: products of sparse tensors, but by a number")
    values = self._values() * other
    return _coo(self, self._indices().clone(), values)._coalesced_(self.is_coalesced())


def add(self: Tensor, other: Tensor, *, alpha: float = 1) -> Tensor:
    if self.layout == other.layout == torch.sparse_coo:
        if self.shape != other.shape or self.sparse_dim() != other.sparse_dim():
            raise NotImplementedError("tpu: sums of sparse tensors of different shapes")
        indices = torch.cat([self._indices(), other._indices()], 1)
        values = torch.cat([self._values(), other._values() * alpha])
        total = _coo(self, indices, values)._coalesced_(False)
        return total.coalesce() if self.is_coalesced() and other.is_coalesced() else total
    return add_(self.clone(), other, alpha=alpha)


def add_(self: Tensor, other: Tensor, *, alpha: float = 1) -> Tensor:
    """Into a dense tensor only the elements of the sparse one; this is how optimizers apply sparse gradients."""
    if self.layout == other.layout == torch.sparse_coo:
        return self.copy_(add(self, other, alpha=alpha))
    if self.layout != torch.strided or other.layout != torch.sparse_coo or self.shape != other.shape:
        raise NotImplementedError(f"tpu: the sum of tensors of layouts {self.layout} and {other.layout}")
    values = other._values() * alpha
    return self.index_put_(tuple(other._indices()), values.to(self.dtype), accumulate=True)


def sampled_addmm(self: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """`alpha * (mat1 @ mat2) + beta * self` where the CSR matrix `self` has elements."""
    rows, columns = _csr_indices(self)
    products = (mat1.index_select(0, rows) * mat2.index_select(1, columns).t()).sum(-1)
    values = products * alpha + self.values() * beta
    return torch.sparse_csr_tensor(
        self.crow_indices().clone(), self.col_indices().clone(), values, self.shape, check_invariants=False
    )


def csr_mask(self: Tensor, mask: Tensor, accumulate_matches: bool = False) -> Tensor:
    """The elements of a dense matrix where the CSR matrix `mask` has some: the gradient of `sampled_addmm`."""
    if self.layout != torch.strided or self.shape != mask.shape:
        raise NotImplementedError(
            f"tpu: sparse_mask of {self.layout} {list(self.shape)} with CSR {list(mask.shape)}"
        )
    rows, columns = _csr_indices(mask)
    return torch.sparse_csr_tensor(
        mask.crow_indices().clone(),
        mask.col_indices().clone(),
        self[rows, columns],
        self.shape,
        check_invariants=False,
    )


def mm_reduce(self: Tensor, other: Tensor, reduce: str) -> tuple[Tensor, Tensor]:
    """Like `mm`, with the products of a row reduced by sum, mean, amax or amin; rows without elements are 0."""
    rows, columns = _csr_indices(self)
    products = self.values()[:, None] * other.index_select(0, columns)
    result = products.new_zeros(self.size(0), other.size(1))
    index = rows[:, None].expand_as(products)
    result = result.scatter_reduce(0, index, products, reduce, include_self=False)
    places = torch.full_like(result, self._nnz(), dtype=torch.int64)
    if reduce in ("amax", "amin"):
        # The first element that gave the extreme.
        order = torch.arange(self._nnz(), device=rows.device)[:, None].expand_as(products)
        chosen = torch.where(products == result.gather(0, index), order, self._nnz())
        places = places.scatter_reduce(0, index, chosen, "amin")
    return result, places


def mm_reduce_backward(
    self: Tensor, grad: Tensor, weight: Tensor, reduce: str, places: Tensor, mask: list[bool]
) -> tuple[Tensor | None, Tensor | None]:
    """Gradients of the sparse and the dense matrix of `mm_reduce`."""
    rows, columns = _csr_indices(self)
    values = self.values()[:, None]
    # What each product has of its row's gradient.
    share = grad.index_select(0, rows)
    if reduce == "mean":
        share = share / self.crow_indices().diff().index_select(0, rows)[:, None]
    elif reduce != "sum":
        order = torch.arange(self._nnz(), device=rows.device)[:, None]
        share = share.where(places.index_select(0, rows) == order, 0)
    by_self = by_weight = None
    if mask[0]:
        elements = (share * weight.index_select(0, columns)).sum(-1)
        starts, columns_of = self.crow_indices().clone(), self.col_indices().clone()
        by_self = torch.sparse_csr_tensor(starts, columns_of, elements, self.shape, check_invariants=False)
    if mask[1]:
        by_weight = torch.zeros_like(weight).index_add_(0, columns, share * values)
    return by_self, by_weight


def embedding_bag_backward(
    grad: Tensor,
    indices: Tensor,
    offsets: Tensor,
    offset2bag: Tensor,
    bag_size: Tensor,
    maximum_indices: Tensor,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: Tensor | None,
    padding_idx: int = -1,
) -> Tensor:
    rest = (num_weights, scale_grad_by_freq, mode, per_sample_weights, padding_idx)
    if sparse:
        return _aten._embedding_bag_sparse_backward(grad, indices, offsets, offset2bag, bag_size, *rest)
    return _aten._embedding_bag_dense_backward(grad, indices, offset2bag, bag_size, maximum_indices, *rest)


# What makes, takes apart or relabels sparse tensors of any device.
_STRUCTURE = {
    "PrivateUse1": ("_to_sparse", "_to_sparse.sparse_dim"),
    "SparsePrivateUse1": (
        "_sparse_coo_tensor_with_dims", "_sparse_coo_tensor_with_dims_and_tensors", "empty.memory_format",
        "empty_like", "_indices", "_values", "indices", "values", "_nnz", "_dimI", "_dimV", "sparse_dim",
        "dense_dim", "is_coalesced", "_coalesced_", "clone", "copy_", "copy_sparse_to_sparse_", "sparse_resize_",
        "sparse_resize_and_clear_", "resize_as_sparse_", "zero_",
    ),
    "SparseCsrPrivateUse1": (
        "empty.memory_format", "empty_like", "crow_indices", "col_indices", "ccol_indices", "row_indices", "values",
        "_nnz", "sparse_dim", "dense_dim", "clone", "copy_",
    ),
}  # fmt: skip

KERNELS = [
    ("_to_sparse_csr", to_csr, "PrivateUse1"),
    ("_to_sparse_csr", to_csr, "SparsePrivateUse1"),
    ("_coalesce", coalesce, "SparsePrivateUse1"),
    ("_to_dense", to_dense, "SparsePrivateUse1"),
    ("sparse_mask", sparse_mask, "SparsePrivateUse1"),
    ("_sparse_mask_projection", sparse_mask, "SparsePrivateUse1"),
    ("mm", mm, "SparsePrivateUse1"),
    ("_sparse_sparse_matmul", sparse_mm, "SparsePrivateUse1"),
    ("addmm", addmm, "SparsePrivateUse1"),
    ("mul.Tensor", mul, "SparsePrivateUse1"),
    ("add.Tensor", add, "SparsePrivateUse1"),
    ("add_.Tensor", add_, "SparsePrivateUse1"),
    ("_to_dense", csr_to_dense, "SparseCsrPrivateUse1"),
    ("mm", mm, "SparseCsrPrivateUse1"),
    ("addmm", addmm, "SparseCsrPrivateUse1"),
    ("sparse_mask", csr_mask, "SparseCsrPrivateUse1"),
    ("sparse_sampled_addmm", sampled_addmm, "SparseCsrPrivateUse1"),
    ("_sparse_mm_reduce_impl", mm_reduce, "SparseCsrPrivateUse1"),
    ("_sparse_mm_reduce_impl_backward", mm_reduce_backward, "SparseCsrPrivateUse1"),
    ("_embedding_bag_backward", embedding_bag_backward, "PrivateUse1"),
    *((name, kernel_of_the_cpu(name, key), key) for key, names in _STRUCTURE.items() for name in names),
]
