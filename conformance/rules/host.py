"""Operators that read from the device while they run, because a size or a Python number depends on the data.

An operator that is not listed and reads is wrong, whatever its values: it may have computed them on the host.
"""

_NUMBER = "its result is a Python number"
_SIZE = "the size of its result depends on the data"
_MASK = "a mask as an index becomes positions, whose number depends on the data"
_CHECK = "PyTorch itself looks at a value: "

READS: dict[str, str] = {
    **dict.fromkeys(("allclose", "equal", "item"), _NUMBER),
    **dict.fromkeys(("argwhere", "masked_select", "nonzero", "repeat_interleave"), _SIZE),
    **dict.fromkeys(("bincount", "unique", "unique_consecutive"), _SIZE),
    **dict.fromkeys(("__getitem__", "index_put"), _MASK),
    **dict.fromkeys(
        (
            "linalg.cholesky",
            "linalg.inv",
            "linalg.lu_factor",
            "linalg.solve",
            "linalg.tensorinv",
            "linalg.tensorsolve",
        ),
        f"{_CHECK}whether the factorisation succeeded",
    ),
    "linalg.matrix_power": f"{_CHECK}whether the inverse exists, for negative powers",
    **dict.fromkeys(
        ("linspace.tensor_overload", "logspace.tensor_overload"),
        "ends that are tensors become Python numbers; of linspace where there is `out=`",
    ),
    "narrow": "a start that is a tensor becomes a Python number",
    "nn.functional.ctc_loss": "PyTorch itself makes Python numbers of lengths that are tensors",
    "to_sparse": _SIZE,
    "istft": f"{_CHECK}whether the windows leave gaps",
    "corrcoef": f"{_CHECK}whether to warn of too few degrees of freedom",
    "cov": f"{_CHECK}whether to warn of too few degrees of freedom",
    "nn.functional.gaussian_nll_loss": f"{_CHECK}whether a variance is negative",
    "nn.functional.one_hot": f"{_CHECK}the range of the classes",
}
# Likewise the formulas of gradients and tangents.
_ZEROS = f"{_CHECK}whether there is a zero to divide by"
READS_OF_GRADIENTS: dict[str, str] = {
    **dict.fromkeys(("cumprod", "masked.cumprod", "linalg.vander", "masked.prod", "prod"), _ZEROS),
    "index_fill": "PyTorch adds up the gradients at distinct positions, whose number depends on the data",
    "masked_fill": "PyTorch adds up the gradients that the mask selects, whose number depends on the data",
    **dict.fromkeys(
        ("max.reduction_no_dim", "median", "min.reduction_no_dim", "nanmedian"),
        f"{_CHECK}whether the extreme is NaN, on devices other than CUDA",
    ),
}
# Operators that the host computes by design.
KERNELS: dict[str, str] = {
    **dict.fromkeys(
        ("aten::linalg_ldl_factor_ex.out", "aten::linalg_ldl_solve.out"),
        "the pivots of a symmetric indefinite matrix are chosen element by element",
    ),
    **dict.fromkeys(
        ("aten::linalg_eig", "aten::linalg_eig.out", "aten::_linalg_eigvals", "aten::linalg_eigvals.out"),
        "the QR iteration on a matrix that is not symmetric is sequential",
    ),
    "aten::linalg_lstsq.out": "the rank decides the sizes of the results",
}
