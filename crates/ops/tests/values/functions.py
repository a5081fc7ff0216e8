"""Calls of distances, sampling, bags of embeddings and incomplete gamma functions for `generate.py`."""

import torch

aten = torch.ops.aten
INF = float("inf")

ROWS = torch.tensor([[0.5, -1.0, 2.0], [0.5, 0.25, -0.75], [0.0, 0.0, 1.5], [1.0, -2.0, 0.0]])


def distances(File):
    with File("distances") as f:
        for p in (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, INF):
            distance = f.call(aten._cdist_forward.default, ROWS, ROWS[1:], p, 2)[0]
            grad = torch.arange(12.0).reshape(4, 3)
            f.call(aten._cdist_backward.default, grad, ROWS, ROWS[1:].contiguous(), p, distance)
            distance = f.call(aten._pdist_forward.default, ROWS, p)[0]
            f.call(aten._pdist_backward.default, torch.arange(6.0), ROWS, p, distance)
        f.call(aten._cdist_forward.default, ROWS, ROWS[1:], 2.0, 1)
        f.call(aten._cdist_forward.default, ROWS[:, :0], ROWS[1:, :0], 2.0, None)


def sampling(File):
    image = torch.arange(12.0).reshape(1, 1, 3, 4)
    points = torch.tensor([[-0.9, 0.3], [0.2, -0.6], [1.4, 0.1]]).reshape(1, 1, 3, 2)
    with File("sampling") as f:
        for mode in range(3):
            for padding in range(3):
                f.call(aten.grid_sampler_2d.default, image, points, mode, padding, padding == 1)
        for mode in range(2):
            volume, places = image.reshape(1, 1, 3, 2, 2), torch.tensor([[[[[0.1, -0.4, 0.6]]]]])
            f.call(aten.grid_sampler_3d.default, volume, places, mode, 0, False)
        for op in (aten._upsample_bilinear2d_aa, aten._upsample_bicubic2d_aa, aten._upsample_lanczos2d_aa):
            f.call(op.default, image, [2, 6], False, None, None)
        samples = torch.tensor([[[0.3, 0.8]]])
        f.call(aten.fractional_max_pool2d.default, image, [2, 2], [1, 2], samples)


def embeddings(File):
    with File("embeddings") as f:
        f.call(aten.embedding_renorm.default, ROWS, torch.tensor([0, 3, 0]), 1.0, 2.0)
        f.call(aten.embedding_renorm.default, ROWS, torch.tensor([1]), 0.5, INF)


def incomplete_gamma(File):
    a = torch.tensor([0.01, 0.5, 1.0, 5.0, 30.0, 250.0, 0.0, 2.0, INF, -1.0])
    x = torch.tensor([0.2, 0.3, 2.5, 7.0, 25.0, 260.0, 1.0, 0.0, 1.0, 1.0])
    with File("incomplete_gamma") as f:
        f.call(aten.igamma.default, a, x)
        f.call(aten.igammac.default, a, x)


def write(File):
    distances(File)
    sampling(File)
    embeddings(File)
    incomplete_gamma(File)
