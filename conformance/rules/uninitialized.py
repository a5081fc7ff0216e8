"""Operators whose results are whatever the memory holds: their dtype, shape, strides and aliasing are compared."""

OPERATORS = frozenset(
    {
        "empty",
        "empty_like",
        "empty_permuted",
        "empty_strided",
        "new_empty",
        "new_empty_strided",
        # Elements that a growth adds.
        "resize_",
        "resize_as_",
    }
)
