"""Direct methods of linear algebra on the device against the CPU: factorisations, solutions, gradients, errors."""

from __future__ import annotations

import pytest
import torch

pytestmark = pytest.mark.usefixtures("no_fallback")

FLOATS = [torch.float32, torch.float64, torch.complex64, torch.complex128]
# The programs of the other two differ in the element type alone.
TYPES = [torch.float32, torch.complex128]
# Small matrices are one block; larger ones take several, the last of them not full.
SIZES = [5, 70]
SHAPES = [(2, 3, 4, 4), (100, 70), (2, 65, 65), (3, 1), (1, 3), (1, 1), (3, 0), (0, 3), (0, 0), (0, 3, 3)]
CASES = [(shape, torch.float32) for shape in SHAPES] + [((70, 100), dtype) for dtype in FLOATS]


def matrix(*shape, dtype=torch.float32):
    """Random, and diagonally dominant where square, so that one element of the result decides no other's rounding."""
    x = torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(sum(shape)))
    if shape[-1] == shape[-2]:
        x = x + 2 * shape[-1] ** 0.5 * torch.eye(shape[-1], dtype=dtype)
    return x


def positive(*shape, dtype=torch.float32):
    x = matrix(*shape, dtype=dtype)
    return x @ x.mH / shape[-1]


def moved(value):
    return value.to("tpu") if isinstance(value, torch.Tensor) else value


def flat(result):
    return [result] if isinstance(result, torch.Tensor) else list(result)


def compare(function, *args, **tolerance):
    """`function` gives the same on both devices."""
    want, got = flat(function(*args)), flat(function(*map(moved, args)))
    assert len(want) == len(got)
    for expected, result in zip(want, got, strict=True):
        assert result.device.type == "tpu"
        assert result.stride() == expected.stride() or not expected.numel()
        torch.testing.assert_close(result.cpu(), expected, equal_nan=True, **tolerance)


def loose(dtype):
    """Elements of a factorisation of 100 rows differ by the order of sums in products of blocks."""
    return {"rtol": 1e-4, "atol": 1e-4} if dtype in (torch.float32, torch.complex64) else {}


def fails_alike(function, *args):
    """`function` raises the same exception on both devices."""
    with pytest.raises(RuntimeError) as want:
        flat(function(*args))[0].cpu()
    with pytest.raises(want.type) as got:
        flat(function(*map(moved, args)))[0].cpu()
    # Errors that come later name the operator and the line before the message.
    assert str(got.value).splitlines()[0].endswith(str(want.value).splitlines()[0])


def gradients(function, *args):
    """Gradients of a sum of all results, weighted so that none cancels."""

    def run(*args):
        leaves = [arg.detach().clone().requires_grad_() for arg in args]
        results = [x for x in flat(function(*leaves)) if x.dtype.is_floating_point or x.dtype.is_complex]
        total = sum(
            (x * torch.linspace(1, 2, x.numel()).reshape(x.shape).to(x.device)).abs().sum() for x in results
        )
        return torch.autograd.grad(total, leaves)

    compare(run, *args, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("shape", "dtype"), CASES)
def test_lu(shape, dtype):
    x = matrix(*shape, dtype=dtype)
    compare(torch.linalg.lu_factor_ex, x, **loose(dtype))
    compare(torch.linalg.lu, x, **loose(dtype))
    compare(lambda x: torch.lu_unpack(*torch.linalg.lu_factor(x)), x, **loose(dtype))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("n", [40, 80])
def test_lu_exchanges_rows_as_lapack_does(n, dtype):
    generator = torch.Generator().manual_seed(n)
    x = torch.randn(2, n, n + 3, dtype=dtype, generator=generator)
    want, got = torch.linalg.lu_factor(x), torch.linalg.lu_factor(x.to("tpu"))
    assert torch.equal(got.pivots.cpu(), want.pivots)
    p, low, up = torch.lu_unpack(*(part.cpu() for part in got))
    torch.testing.assert_close(p @ low @ up, x, **loose(dtype))


def test_lu_without_pivots():
    x = matrix(70, 70, dtype=torch.float64)
    lu, pivots = torch.linalg.lu_factor(x.to("tpu"), pivot=False)
    assert torch.equal(pivots.cpu(), torch.arange(1, 71, dtype=torch.int32))
    torch.testing.assert_close((torch.eye(70) + lu.cpu().tril(-1)) @ lu.cpu().triu(), x)
    p, low, up = torch.linalg.lu(x.to("tpu"), pivot=False)
    assert p.shape == (0,)
    torch.testing.assert_close((low @ up).cpu(), x)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("adjoint", [False, True])
@pytest.mark.parametrize("left", [False, True])
def test_solve_from_factors(n, dtype, adjoint, left):
    rhs = matrix(2, 1, n, 2, dtype=dtype)
    rhs = rhs if left else rhs.mT
    compare(
        lambda a, b: torch.linalg.lu_solve(*torch.linalg.lu_factor(a), b, left=left, adjoint=adjoint),
        matrix(3, n, n, dtype=dtype),
        rhs,
    )


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("n", SIZES)
def test_solve_and_inverse(n, dtype):
    a = matrix(n, n, dtype=dtype)
    compare(torch.linalg.solve, a, matrix(n, 3, dtype=dtype))
    compare(torch.linalg.solve, a, matrix(n, 1, dtype=dtype)[:, 0])
    compare(torch.linalg.solve, a.mT, matrix(2, n, 3, dtype=dtype))
    compare(lambda a, b: torch.linalg.solve(a, b, left=False), a, matrix(3, n, dtype=dtype))
    compare(torch.linalg.inv_ex, a)
    compare(torch.linalg.inv, a.mH)


def test_solve_expands_batches_and_takes_empty_ones():
    a, b = matrix(2, 1, 4, 4), matrix(3, 4, 2)
    compare(torch.linalg.solve, a, b)
    compare(torch.linalg.solve, matrix(3, 4, 4), matrix(3, 4))
    compare(torch.linalg.solve, a[:0], b)
    compare(torch.linalg.solve, matrix(0, 0), matrix(0, 2))
    compare(torch.linalg.solve, matrix(4, 4), matrix(4, 0))
    compare(torch.linalg.inv, matrix(0, 0))
    compare(lambda a: torch.linalg.solve(a[..., ::2, 1::2], a[..., 0, :2, 1]), a)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", [(1, 1), (2, 3, 4, 4), (70, 70), (0, 0), (2, 0, 0)])
def test_determinants(shape, dtype):
    x = matrix(*shape, dtype=dtype) / 8
    compare(torch.linalg.det, x)
    compare(torch.linalg.slogdet, x.mT)
    compare(torch.logdet, (x @ x.mH).real if dtype.is_complex else x @ x.mH)


def test_determinants_of_singular_matrices():
    x = torch.stack([torch.ones(3, 3), torch.zeros(3, 3), torch.eye(3)[[1, 0, 2]], torch.eye(3).roll(1, 0)])
    compare(torch.linalg.det, x)
    compare(torch.linalg.slogdet, x)


def test_info_and_errors_of_singular_matrices():
    zero, late = torch.zeros(3, 3), torch.diag(torch.tensor([1.0, 2.0, 0.0, 3.0]))
    batch = torch.stack([torch.eye(4), late, torch.ones(4, 4)])
    for x in (zero, late, batch, torch.block_diag(torch.eye(70), late)):
        compare(lambda x: torch.linalg.lu_factor_ex(x).info, x)
        compare(lambda x: torch.linalg.inv_ex(x).info, x)
        fails_alike(torch.linalg.inv, x)
        fails_alike(torch.linalg.solve, x, torch.ones(x.shape[-1]))
        fails_alike(torch.linalg.lu_factor, x)
        fails_alike(lambda x: torch.linalg.inv_ex(x, check_errors=True), x)
        fails_alike(lambda x: torch.linalg.lu_factor_ex(x, check_errors=True), x)
        fails_alike(lambda x: torch.linalg.solve_ex(x, torch.ones_like(x), check_errors=True), x)
    fails_alike(torch.linalg.inv, torch.ones(2, 3))
    fails_alike(torch.linalg.inv, torch.ones(2, 2, dtype=torch.bfloat16))
    fails_alike(torch.linalg.det, torch.ones(2, 2, dtype=torch.int64))
    fails_alike(torch.linalg.solve, torch.eye(2), torch.ones(3))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("upper", [False, True])
def test_cholesky(n, upper, dtype):
    a = positive(2, n, n, dtype=dtype)
    compare(lambda a: torch.linalg.cholesky_ex(a, upper=upper), a)
    compare(
        lambda a, b: torch.cholesky_solve(b, torch.linalg.cholesky(a, upper=upper), upper),
        a,
        matrix(n, 2, dtype=dtype),
    )
    compare(lambda a: torch.cholesky_inverse(torch.linalg.cholesky(a, upper=upper), upper), a)


def test_cholesky_reads_one_triangle():
    a = positive(40, 40)
    noise = torch.full((40, 40), torch.nan)
    compare(torch.linalg.cholesky, a.tril() + noise.triu(1))
    compare(lambda a: torch.linalg.cholesky(a, upper=True), a.triu() + noise.tril(-1))
    compare(torch.linalg.cholesky, positive(0, 0))
    compare(torch.linalg.cholesky, positive(0, 3, 3))


def test_cholesky_of_indefinite_matrices():
    late = positive(70, 70)
    late[50, 50] = -1
    for x in (torch.zeros(3, 3), -torch.eye(2), late, torch.stack([torch.eye(3), torch.ones(3, 3)])):
        compare(lambda x: torch.linalg.cholesky_ex(x).info, x)
        fails_alike(torch.linalg.cholesky, x)
        fails_alike(lambda x: torch.linalg.cholesky_ex(x, check_errors=True), x)
    fails_alike(torch.cholesky_inverse, torch.diag(torch.tensor([1.0, 0.0])))
    fails_alike(torch.cholesky_inverse, torch.stack([torch.eye(2), torch.zeros(2, 2)]))
    nan = torch.tensor([[1.0, 0.0], [0.0, torch.nan]])
    compare(lambda x: torch.linalg.cholesky_ex(x).info, nan)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("unit", [False, True])
def test_triangular_systems(n, left, upper, unit, dtype):
    # The other triangle is not read, nor the diagonal where it counts as ones.
    a = matrix(2, n, n, dtype=dtype) / (4 * n)
    a = a + torch.eye(n, dtype=dtype)
    b = matrix(n, 3, dtype=dtype) if left else matrix(3, n, dtype=dtype)
    compare(
        lambda a, b: torch.linalg.solve_triangular(a, b, upper=upper, left=left, unitriangular=unit), a, b
    )
    compare(lambda a, b: torch.triangular_solve(b, a, upper, not left, unit), a, matrix(n, 3, dtype=dtype))


def test_triangular_systems_at_the_limits():
    compare(lambda a, b: torch.linalg.solve_triangular(a, b, upper=True), matrix(0, 0), matrix(0, 2))
    compare(lambda a, b: torch.linalg.solve_triangular(a, b, upper=True), matrix(3, 3), matrix(3, 0))
    zero = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    compare(lambda a, b: torch.linalg.solve_triangular(a, b, upper=False), zero, torch.tensor([[1.0], [2.0]]))
    late = torch.eye(80)
    late[70, 70] = 0
    compare(lambda a, b: torch.linalg.solve_triangular(a, b, upper=False), late, torch.ones(80, 1))


@pytest.mark.parametrize(("shape", "dtype"), CASES)
def test_qr(shape, dtype):
    x = matrix(*shape, dtype=dtype)
    for mode in ("reduced", "complete", "r"):
        compare(lambda x, mode=mode: torch.linalg.qr(x, mode), x, **loose(dtype))
    compare(torch.geqrf, x, **loose(dtype))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", [(2, 4, 4), (90, 70), (3, 0), (0, 3, 2)])
def test_products_of_reflections(shape, dtype):
    packed, tau = torch.geqrf(matrix(*shape, dtype=dtype))
    compare(torch.linalg.householder_product, packed, tau)
    compare(torch.linalg.householder_product, packed, tau[..., : max(tau.shape[-1] - 1, 0)])
    rows = shape[-2]
    for transpose in (False, True):
        compare(
            lambda a, tau, c, transpose=transpose: torch.ormqr(a, tau, c, True, transpose),
            packed, tau, matrix(*shape[:-2], rows, 3, dtype=dtype),
        )  # fmt: skip
        compare(
            lambda a, tau, c, transpose=transpose: torch.ormqr(a, tau, c, False, transpose),
            packed, tau, matrix(*shape[:-2], 2, rows, dtype=dtype),
        )  # fmt: skip


def test_qr_of_columns_that_need_no_reflection():
    compare(torch.geqrf, torch.zeros(4, 3))
    compare(torch.geqrf, torch.eye(4)[:, :3])
    compare(torch.geqrf, torch.eye(3, dtype=torch.complex64) * 1j)
    # Squares of these vanish or overflow.
    compare(torch.geqrf, torch.tensor([[1.0, 2.0], [1e-30, 3.0]]))
    compare(torch.geqrf, torch.tensor([[1e-30, 2e-30], [3e-30, 4e-30]]))
    compare(torch.geqrf, torch.tensor([[1e30, 2e30], [3e30, 4e30]]))


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64])
def test_matrix_exponential(dtype):
    for scale in (1e-6, 0.3, 2.0, 20.0):
        x = torch.randn(2, 6, 6, generator=torch.Generator().manual_seed(0)).to(dtype) * scale / 6
        compare(torch.linalg.matrix_exp, x, rtol=2e-5, atol=1e-6)
    mixed = torch.stack([torch.zeros(3, 3), torch.eye(3), torch.diag(torch.tensor([-30.0, 0.0, 30.0]))])
    compare(torch.linalg.matrix_exp, mixed.to(dtype), rtol=2e-5, atol=1e-6)
    compare(torch.linalg.matrix_exp, torch.ones(2, 1, 1, dtype=dtype))
    compare(torch.linalg.matrix_exp, torch.ones(0, 3, 3, dtype=dtype))


def test_matrix_exponential_in_half_precision():
    # The CPU's own answer in bfloat16 is memory that nobody has written (1e30 for a matrix of norm 1e-6).
    x = torch.randn(2, 6, 6, generator=torch.Generator().manual_seed(0)).bfloat16()
    got = torch.linalg.matrix_exp(x.to("tpu"))
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got.cpu(), torch.linalg.matrix_exp(x.float()).bfloat16())


@pytest.mark.parametrize(("n", "dtype"), [(4, torch.float64), (4, torch.complex128), (66, torch.float64)])
def test_gradients(n, dtype):
    a, b = matrix(2, n, n, dtype=dtype), matrix(2, n, 3, dtype=dtype)
    gradients(torch.linalg.inv, a)
    gradients(torch.linalg.solve, a, b)
    gradients(lambda a, b: torch.linalg.solve(a.mT, b.mT, left=False), a, b)
    gradients(torch.linalg.det, a / 8)
    gradients(torch.linalg.slogdet, a)
    gradients(lambda a: torch.linalg.det(a.mT / 8), a)
    gradients(torch.linalg.lu, a)
    gradients(lambda a, b: torch.linalg.lu_solve(*torch.linalg.lu_factor(a), b), a, b)
    gradients(lambda a: torch.linalg.cholesky(a @ a.mH), a)
    gradients(lambda a, b: torch.cholesky_solve(b, torch.linalg.cholesky(a @ a.mH)), a, b)
    gradients(lambda a, b: torch.linalg.solve_triangular(a, b, upper=True), a, b)
    gradients(torch.linalg.qr, a)
    gradients(torch.linalg.qr, b)
    gradients(torch.linalg.householder_product, *torch.geqrf(b))
    gradients(torch.linalg.matrix_exp, a / n)


def test_results_go_into_given_tensors():
    a, b = matrix(4, 4), matrix(4, 2)
    for size in ((0,), (4, 4)):
        compare(lambda a, out: torch.linalg.inv(a, out=out), a, torch.empty(size))
        compare(lambda a, q, r: torch.linalg.qr(a, out=(q, r)), a, torch.empty(size), torch.empty(size))
        compare(lambda a, out: torch.linalg.cholesky(a @ a.mT, out=out), a, torch.empty(size))
    compare(lambda a, b, out: torch.linalg.solve(a, b, out=out), a, b, torch.empty(0))
    compare(lambda a, b, out: (torch.linalg.solve(a, b, out=out[:, ::2]), out)[1], a, b, torch.zeros(4, 4))
    fails_alike(
        lambda a, out: torch.linalg.inv(a, out=out), a, torch.empty(0, dtype=torch.float64).to(torch.int32)
    )
