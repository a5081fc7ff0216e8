"""Eigenvalues and singular values on the device: as exact as LAPACK's, whatever the shape, rank and scale."""

from __future__ import annotations

import pytest
import torch

pytestmark = pytest.mark.usefixtures("no_fallback")

FLOATS = [torch.float32, torch.float64, torch.complex64, torch.complex128]
NAN, INF = float("nan"), float("inf")


def random(*sizes, dtype=torch.float32, seed=0):
    return torch.randn(sizes, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def wide(x):
    return x.cpu().to(torch.complex128 if x.is_complex() else torch.float64)


def assert_close_to_rounding(got, want, dtype, scale, n):
    """Within the error bound of LAPACK's drivers (LAPACK Users' Guide 4.7, 4.9), p(n) = 5n, for norms of `scale`."""
    bound = 5 * n * torch.finfo(dtype).eps * scale
    assert (wide(got) - want).abs().amax() <= bound


def assert_orthonormal(vectors):
    n = vectors.shape[-1]
    gram = wide(vectors).mH @ wide(vectors)
    assert_close_to_rounding(gram, torch.eye(n, dtype=gram.dtype), vectors.dtype, 1, max(vectors.shape[-2:]))


def check_svd(a):
    m, n = a.shape[-2:]
    k, exact = min(m, n), wide(a)
    values = torch.linalg.svdvals(exact)
    scale = float(values.max())
    for full in (False, True):
        u, s, vh = torch.linalg.svd(a.to("tpu"), full_matrices=full)
        want = torch.linalg.svd(a, full_matrices=full)
        assert [t.shape for t in (u, s, vh)] == [t.shape for t in want]
        assert [t.stride() for t in (u, s, vh)] == [t.stride() for t in want]
        assert [t.dtype for t in (u, s, vh)] == [t.dtype for t in want]
        assert (s.diff(dim=-1) <= 0).all()
        assert_close_to_rounding(s, values, a.dtype, scale, max(m, n))
        product = (wide(u)[..., :k] * wide(s).unsqueeze(-2)) @ wide(vh)[..., :k, :]
        assert_close_to_rounding(product, exact, a.dtype, scale, max(m, n))
        assert_orthonormal(u)
        assert_orthonormal(vh.mH)
    assert_close_to_rounding(torch.linalg.svdvals(a.to("tpu")), values, a.dtype, scale, max(m, n))


def check_eigh(a):
    n, exact = a.shape[-1], wide(a)
    exact = (exact.tril() + exact.tril(-1).mH).clone()
    if a.is_complex():
        exact.diagonal(dim1=-2, dim2=-1).imag.zero_()
    values = torch.linalg.eigvalsh(exact)
    scale = float(values.abs().max())
    got, vectors = torch.linalg.eigh(a.to("tpu"))
    want = torch.linalg.eigh(a)
    assert (got.shape, vectors.shape) == (want[0].shape, want[1].shape)
    assert (got.stride(), vectors.stride()) == (want[0].stride(), want[1].stride())
    assert (got.dtype, vectors.dtype) == (want[0].dtype, want[1].dtype)
    assert (got.diff(dim=-1) >= 0).all()
    assert_close_to_rounding(got, values, a.dtype, scale, n)
    product = (wide(vectors) * wide(got).unsqueeze(-2)) @ wide(vectors).mH
    assert_close_to_rounding(product, exact, a.dtype, scale, n)
    assert_orthonormal(vectors)
    assert_close_to_rounding(torch.linalg.eigvalsh(a.to("tpu")), values, a.dtype, scale, n)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("sizes", [(1, 1), (1, 4), (5, 1), (6, 6), (7, 4), (3, 8), (2, 3, 5, 4)])
def test_svd(sizes, dtype):
    check_svd(random(*sizes, dtype=dtype))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("sizes", [(1, 1), (2, 2), (7, 7), (2, 3, 4, 4)])
def test_eigh(sizes, dtype):
    check_eigh(random(*sizes, dtype=dtype))


def test_large_matrices():
    check_svd(random(100, 70))
    check_eigh(random(90, 90))


DIAGONAL = torch.diag(torch.tensor([3.0, -1.0, 0.0, -1.0]))
SPECIAL = {
    "zeros": torch.zeros(4, 4),
    "ones": torch.ones(4, 4),
    "identity": torch.eye(4),
    "diagonal": DIAGONAL,
    "pairs of opposite eigenvalues": torch.eye(4).flip(0),
    "rank 1": random(4, 1) @ random(1, 4, seed=1),
    "two columns of zeros": torch.cat([torch.zeros(4, 2), random(4, 2)], 1),
    "equal columns": random(4, 1).expand(4, 4).contiguous(),
    "huge": random(4, 4) * 1e37,
    "tiny": random(4, 4) * 1e-36,
    "graded": torch.diag(torch.tensor([1.0, 1e-4, 1e-8, 1e-12])) @ random(4, 4),
    "a matrix of zeros in the batch": torch.stack([random(4, 4), torch.zeros(4, 4), torch.eye(4)]),
}


@pytest.mark.parametrize("name", SPECIAL)
def test_special_matrices(name):
    check_svd(SPECIAL[name])
    check_eigh(SPECIAL[name])


def test_the_range_of_float64():
    for factor in (1e300, 1e-300):
        check_svd(random(4, 3, dtype=torch.float64) * factor)
        check_eigh(random(4, 4, dtype=torch.float64) * factor)


def test_rank_deficient_rectangles_have_full_bases():
    a = random(9, 2) @ random(2, 5, seed=1)
    check_svd(a)
    check_svd(a.mT.contiguous())
    check_svd(torch.zeros(6, 3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_diagonal_matrices_are_exact(dtype):
    values, vectors = torch.linalg.eigh(DIAGONAL.to("tpu", dtype))
    assert values.tolist() == [-1, -1, 0, 3]
    assert vectors.abs().sum().item() == 4
    assert torch.linalg.svdvals(DIAGONAL.to("tpu", dtype)).tolist() == [3, 1, 1, 0]


def test_small_singular_values_are_relatively_exact():
    # One-sided Jacobi: columns of any lengths cost no digits.
    a = random(6, 6) * torch.tensor([1.0, 1e-3, 1e-6, 1e-9, 1e-12, 1e-15])
    got, want = torch.linalg.svdvals(a.to("tpu")).cpu(), torch.linalg.svdvals(a.double())
    torch.testing.assert_close(got.double(), want, rtol=2e-5, atol=0)


@pytest.mark.parametrize("triangle", ["L", "U"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_eigh_reads_one_triangle(triangle, dtype):
    a = random(5, 5, dtype=dtype)
    other = torch.full_like(a, NAN)
    part = torch.Tensor.tril if triangle == "L" else torch.Tensor.triu
    kept = torch.where(part(torch.ones(5, 5, dtype=torch.bool)), a, other)
    got = torch.linalg.eigvalsh(kept.to("tpu"), UPLO=triangle)
    torch.testing.assert_close(got.cpu(), torch.linalg.eigvalsh(a, UPLO=triangle))


@pytest.mark.parametrize("sizes", [(0, 0), (0, 3), (3, 0), (0, 2, 2), (2, 0, 3)])
def test_svd_without_elements(sizes):
    a = torch.ones(sizes)
    for full in (False, True):
        got = torch.linalg.svd(a.to("tpu"), full_matrices=full)
        for x, y in zip(got, torch.linalg.svd(a, full_matrices=full), strict=True):
            torch.testing.assert_close(x.cpu(), y)


@pytest.mark.parametrize("sizes", [(0, 0), (0, 3, 3), (2, 0, 0)])
def test_eigh_without_elements(sizes):
    a = torch.ones(sizes)
    for x, y in zip(torch.linalg.eigh(a.to("tpu")), torch.linalg.eigh(a), strict=True):
        torch.testing.assert_close(x.cpu(), y)


@pytest.mark.parametrize("bad", [NAN, INF])
@pytest.mark.parametrize("sizes", [(1, 1), (3, 3), (2, 4, 3)])
def test_elements_that_are_not_finite_are_refused(bad, sizes):
    a = random(*sizes)
    a[..., -1, 0] = bad
    with pytest.raises(torch.linalg.LinAlgError, match=r"linalg\.svd: The algorithm failed to converge"):
        torch.linalg.svd(a.to("tpu"))[1].cpu()
    with pytest.raises(torch.linalg.LinAlgError, match="non-finite values"):
        torch.linalg.svdvals(a.to("tpu")).cpu()
    with pytest.raises(torch.linalg.LinAlgError, match=r"linalg\.eigh: The algorithm failed to converge"):
        torch.linalg.eigh((a @ a.mT).to("tpu"))[0].cpu()


def test_results_into_given_tensors():
    a = random(4, 3)
    out = tuple(torch.empty(0, device="tpu") for _ in range(3))
    torch.linalg.svd(a.to("tpu"), full_matrices=False, out=out)
    torch.testing.assert_close(((out[0] * out[1]) @ out[2]).cpu(), a)
    out = (torch.empty(0, device="tpu"), torch.empty(0, device="tpu"))
    torch.linalg.eigh((a.mT @ a).to("tpu"), out=out)
    torch.testing.assert_close(((out[1] * out[0]) @ out[1].mT).cpu(), a.mT @ a)


def compare(function, *args, **tolerance):
    got = function(*(x.to("tpu") for x in args)).cpu()
    torch.testing.assert_close(got, function(*args), **tolerance)


LOW_RANK = random(6, 2) @ random(2, 5, seed=1)
DEFINITE = LOW_RANK.mT @ LOW_RANK


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_what_rests_on_singular_values(dtype):
    a, low, definite = random(2, 5, 4, dtype=dtype), LOW_RANK.to(dtype), DEFINITE.to(dtype)
    square = random(4, 4, dtype=dtype)
    compare(torch.linalg.cond, square)
    compare(lambda x: torch.linalg.cond(x, -2), square)
    compare(lambda x: torch.linalg.cond(x, "nuc"), square)
    for order in (2, -2, "nuc"):
        compare(lambda x, order=order: torch.linalg.matrix_norm(x, order), a)
    compare(torch.linalg.matrix_rank, a)
    compare(torch.linalg.matrix_rank, low)
    compare(lambda x: torch.linalg.matrix_rank(x, hermitian=True), definite)
    compare(lambda x: torch.linalg.matrix_rank(x, atol=1.0), a)
    compare(torch.linalg.pinv, a)
    compare(torch.linalg.pinv, low)
    compare(lambda x: torch.linalg.pinv(x, hermitian=True), definite, rtol=1e-4, atol=1e-4)
    compare(lambda x: torch.pinverse(x, rcond=1e-4), low)


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_matrix_functions(dtype):
    square, tall = random(2, 4, 4, dtype=dtype), random(5, 3, dtype=dtype)
    for part in range(2):
        compare(lambda x, part=part: torch.linalg.polar(x)[part], square)
        compare(lambda x, part=part: torch.linalg.polar(x)[part], tall)
    assert torch.equal(*(h(torch.linalg.polar(tall.to("tpu"))[1]) for h in (lambda x: x, lambda x: x.mH)))
    compare(lambda x: torch.linalg.matrix_sqrth(x @ x.mH), square, rtol=1e-5, atol=1e-5)
    compare(torch.linalg.matrix_sqrth, torch.ones(3, 3, dtype=dtype), rtol=1e-5, atol=1e-3)
    compare(torch.linalg.matrix_sqrth, torch.eye(2, dtype=dtype).flip(0))


def test_the_root_of_what_is_not_finite_is_nan():
    a = torch.stack([torch.eye(3) * 4, torch.full((3, 3), NAN)])
    got = torch.linalg.matrix_sqrth(a.to("tpu")).cpu()
    torch.testing.assert_close(got[0], torch.eye(3) * 2)
    assert got[1].isnan().all()
    with pytest.raises(torch.linalg.LinAlgError, match="failed to converge"):
        torch.linalg.polar(a.to("tpu"))[0].cpu()


def test_polar_factors_of_singular_matrices():
    a = LOW_RANK.to("tpu")
    u, h = torch.linalg.polar(a)
    torch.testing.assert_close((u @ h).cpu(), LOW_RANK)
    assert_orthonormal(u)


def gradient(function, x):
    x = x.detach().requires_grad_()
    return torch.autograd.grad(function(x), x)[0]


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_gradients(dtype):
    a = random(4, 4, dtype=dtype)
    rectangle = random(5, 3, dtype=dtype)

    def of_vectors(x):
        # Does not depend on the vectors' signs or phases.
        u, s, vh = torch.linalg.svd(x, full_matrices=False)
        return (u.abs() * s).sum() + (vh.abs() ** 3).sum()

    def of_eigenvectors(x):
        values, vectors = torch.linalg.eigh(x + x.mH)
        return (vectors.abs() * values).sum()

    for function, x in [
        (of_vectors, rectangle),
        (of_eigenvectors, a),
        (lambda x: torch.linalg.svdvals(x).prod(), rectangle),
        (lambda x: torch.linalg.eigvalsh(x + x.mH)[1:].prod(), a),
        (lambda x: torch.linalg.pinv(x).abs().sum(), rectangle),
        (lambda x: torch.linalg.matrix_norm(x, "nuc"), rectangle),
    ]:
        compare(lambda x, function=function: gradient(function, x), x)


@pytest.mark.parametrize("dtype", FLOATS)
def test_eigenvalues_of_general_matrices_are_found_on_the_host(dtype, tpu):
    a = random(3, 4, 4, dtype=dtype)
    tpu.reset_stats()
    values, vectors = torch.linalg.eig(a.to("tpu"))
    assert values.device.type == vectors.device.type == "tpu"
    residual = wide(a).to(torch.complex128) @ wide(vectors) - wide(vectors) * wide(values).unsqueeze(-2)
    assert residual.abs().max() < 100 * torch.finfo(dtype).eps
    compare(torch.linalg.eigvals, a)
    compare(lambda x: torch.linalg.eig(x, out=(x + 0j, x + 0j))[0], a)
    stats = tpu.stats()
    assert stats["fallbacks"] == 0
    assert stats["host_kernels"] == sum(stats["host_kernel_ops"].values()) == 3
    assert set(stats["host_kernel_ops"]) == {
        "aten::linalg_eig",
        "aten::_linalg_eigvals",
        "aten::linalg_eig.out",
    }


def test_one_tensor_cannot_take_results_of_different_sizes():
    a = random(3, 4, 4).to("tpu")
    out = torch.empty(3, 4, 4, dtype=torch.complex64, device="tpu")
    with pytest.raises(RuntimeError, match="results of two sizes to one tensor"):
        torch.linalg.eig(a, out=(out, out))


def test_gradients_of_general_eigenvalues():
    a = random(4, 4, dtype=torch.float64)
    compare(lambda x: gradient(lambda x: torch.linalg.eigvals(x).abs().sum(), x), a)
    compare(lambda x: gradient(lambda x: torch.linalg.eig(x)[1].abs().sum(), x), a)


@pytest.mark.parametrize("driver", [None, "gels", "gelsy", "gelsd", "gelss"])
def test_least_squares_on_the_host(driver, tpu):
    a, b = random(2, 5, 3), random(2, 5, 2, seed=1)
    if driver != "gels":
        a[0, :, 2] = a[0, :, 1]
    tpu.reset_stats()
    got = torch.linalg.lstsq(a.to("tpu"), b.to("tpu"), driver=driver)
    for x, y in zip(got, torch.linalg.lstsq(a, b, driver=driver), strict=True):
        assert (x.device.type, x.shape) == ("tpu", y.shape)
        assert x.stride() == y.stride() or not y.numel()
        torch.testing.assert_close(x.cpu(), y, rtol=1e-4, atol=1e-5)
    assert tpu.stats()["host_kernel_ops"] == {"aten::linalg_lstsq.out": 1}


def test_gradient_of_least_squares():
    a, b = random(5, 3, dtype=torch.float64), random(5, 2, dtype=torch.float64)
    compare(lambda a, b: gradient(lambda a: torch.linalg.lstsq(a, b).solution.sum(), a), a, b)


@pytest.mark.parametrize("decompose", [torch.svd_lowrank, torch.pca_lowrank])
def test_low_rank_approximations(decompose):
    a = random(40, 3) @ random(3, 20, seed=1)
    u, s, v = decompose(a.to("tpu"), q=6)
    want = a - a.mean(0) if decompose is torch.pca_lowrank else a
    torch.testing.assert_close(((u * s) @ v.mT).cpu(), want, rtol=1e-4, atol=1e-4)
