"""Where the CPU's own answer is wrong, the device is compared with what it should have been."""

STRIDED_OUT: dict[str, str] = dict.fromkeys(
    ("narrow_copy", "nn.functional.avg_pool3d", "nn.functional.gelu"),
    "the CPU's kernel writes an `out=` tensor with gaps as if it had none; compared with its result without `out=`",
)
