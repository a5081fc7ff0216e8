"""Ten small models with random weights and a batch for each: what training is tested with.

Sizes are the same wherever an architecture allows it, so that models share programs, and there is one layer, because
the programs that update parameters take time to compile for each. Dropout is off: its random numbers
differ between devices by design, and have tests of their own.

Shapes: B batch, T time (tokens), D width, C channels, V vocabulary.
"""

from __future__ import annotations

from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn

B, T, D, V = 2, 16, 32, 64
HEADS, LAYERS = 4, 1
CLASSES = 10
Batch = dict[str, torch.Tensor]


def _tokens(*shape: int) -> torch.Tensor:
    return torch.randint(3, V, shape)


def _causal(model: nn.Module) -> tuple[nn.Module, Batch]:
    tokens_BT = _tokens(B, T)
    return model, {"input_ids": tokens_BT, "labels": tokens_BT.clone()}


def gpt2() -> tuple[nn.Module, Batch]:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=V,
        n_positions=T,
        n_embd=D,
        n_layer=LAYERS,
        n_head=HEADS,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    return _causal(GPT2LMHeadModel(config))


def llama() -> tuple[nn.Module, Batch]:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=V,
        hidden_size=D,
        intermediate_size=2 * D,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS // 2,
        max_position_embeddings=T,
    )
    return _causal(LlamaForCausalLM(config))


def qwen3_moe() -> tuple[nn.Module, Batch]:
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    config = Qwen3MoeConfig(
        vocab_size=V,
        hidden_size=D,
        intermediate_size=2 * D,
        moe_intermediate_size=D,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS // 2,
        head_dim=D // HEADS,
        num_experts=4,
        num_experts_per_tok=2,
        max_position_embeddings=T,
        output_router_logits=True,
    )
    return _causal(Qwen3MoeForCausalLM(config))


def bert() -> tuple[nn.Module, Batch]:
    """With a padded row, and labels for some tokens only."""
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        vocab_size=V,
        hidden_size=D,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=2 * D,
        max_position_embeddings=T,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    tokens_BT = _tokens(B, T)
    mask_BT = torch.ones(B, T, dtype=torch.int64)
    mask_BT[1, T // 2 :] = 0
    labels_BT = torch.where((torch.rand(B, T) < 0.4) & mask_BT.bool(), tokens_BT, -100)
    return BertForMaskedLM(config), {
        "input_ids": tokens_BT,
        "attention_mask": mask_BT,
        "labels": labels_BT,
    }


def resnet() -> tuple[nn.Module, Batch]:
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(
        embedding_size=16,
        hidden_sizes=[16, 32],
        depths=[1, 1],
        layer_type="basic",
        num_labels=CLASSES,
    )
    images_BCHW, labels_B = torch.randn(4, 3, 32, 32), torch.randint(0, CLASSES, (4,))
    return ResNetForImageClassification(config), {
        "pixel_values": images_BCHW,
        "labels": labels_B,
    }


def vit() -> tuple[nn.Module, Batch]:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=D,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=2 * D,
        image_size=32,
        patch_size=8,
        num_labels=CLASSES,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    images_BCHW, labels_B = torch.randn(B, 3, 32, 32), torch.randint(0, CLASSES, (B,))
    return ViTForImageClassification(config), {"pixel_values": images_BCHW, "labels": labels_B}


def t5() -> tuple[nn.Module, Batch]:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=V,
        d_model=D,
        d_kv=D // HEADS,
        d_ff=2 * D,
        num_layers=LAYERS,
        num_heads=HEADS,
        dropout_rate=0.0,
        feed_forward_proj="gated-gelu",
        decoder_start_token_id=0,
    )
    return T5ForConditionalGeneration(config), {
        "input_ids": _tokens(B, T),
        "labels": _tokens(B, T // 2),
    }


def whisper() -> tuple[nn.Module, Batch]:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    config = WhisperConfig(
        vocab_size=V,
        num_mel_bins=8,
        d_model=D,
        encoder_layers=LAYERS,
        decoder_layers=LAYERS,
        encoder_attention_heads=HEADS,
        decoder_attention_heads=HEADS,
        encoder_ffn_dim=2 * D,
        decoder_ffn_dim=2 * D,
        max_source_positions=T,
        max_target_positions=T,
        dropout=0.0,
        attention_dropout=0.0,
        activation_dropout=0.0,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
    )
    # Its second convolution halves the time.
    return WhisperForConditionalGeneration(config), {
        "input_features": torch.randn(B, 8, 2 * T),
        "labels": _tokens(B, T // 2),
    }


class Recurrent(nn.Module):
    """A bidirectional LSTM of two layers, then a GRU, that predict the next token."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(V, D)
        self.lstm = nn.LSTM(D, D, num_layers=2, batch_first=True, bidirectional=True)
        self.gru = nn.GRU(2 * D, D, batch_first=True)
        self.head = nn.Linear(D, V)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> SimpleNamespace:
        hidden_BTD, _ = self.lstm(self.embed(input_ids))
        hidden_BTD, _ = self.gru(hidden_BTD)
        logits_BTV = self.head(hidden_BTD)
        return SimpleNamespace(loss=F.cross_entropy(logits_BTV.flatten(0, 1), labels.flatten()))


def recurrent() -> tuple[nn.Module, Batch]:
    return _causal(Recurrent())


class ResidualBlock(nn.Module):
    """Group norm, SiLU and convolution twice, with the time embedding added between."""

    def __init__(self, channels_in: int, channels: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(4, channels_in), nn.GroupNorm(4, channels)
        self.conv1 = nn.Conv2d(channels_in, channels, 3, padding=1)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)
        self.time = nn.Linear(D, channels)
        self.skip = nn.Conv2d(channels_in, channels, 1)

    def forward(self, x_BCHW: torch.Tensor, time_BD: torch.Tensor) -> torch.Tensor:
        y_BCHW = self.conv1(F.silu(self.norm1(x_BCHW)))
        y_BCHW = y_BCHW + self.time(F.silu(time_BD))[:, :, None, None]
        return self.skip(x_BCHW) + self.conv2(F.silu(self.norm2(y_BCHW)))


class CrossAttention(nn.Module):
    """Attention of the image to a context, then a GEGLU."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(channels), nn.LayerNorm(channels)
        self.q, self.kv = nn.Linear(channels, channels), nn.Linear(D, 2 * channels)
        self.out = nn.Linear(channels, channels)
        self.geglu, self.down = nn.Linear(channels, 4 * channels), nn.Linear(2 * channels, channels)

    def forward(self, x_BCHW: torch.Tensor, context_BTD: torch.Tensor) -> torch.Tensor:
        x_BTC = x_BCHW.flatten(2).transpose(1, 2)
        q, k, v = (
            t.unflatten(-1, (2, -1)).transpose(1, 2)
            for t in (self.q(self.norm1(x_BTC)), *self.kv(context_BTD).chunk(2, dim=-1))
        )
        attended = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x_BTC = x_BTC + self.out(attended)
        value, gate = self.geglu(self.norm2(x_BTC)).chunk(2, dim=-1)
        x_BTC = x_BTC + self.down(value * F.gelu(gate))
        return x_BTC.transpose(1, 2).reshape(x_BCHW.shape)


class UNet(nn.Module):
    """A diffusion UNet of one level: down, cross attention in the middle, up with a skip connection."""

    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(D, D), nn.SiLU(), nn.Linear(D, D))
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.down_block, self.down = ResidualBlock(16, 16), nn.Conv2d(16, D, 3, stride=2, padding=1)
        self.middle, self.attention = ResidualBlock(D, D), CrossAttention(D)
        self.up = nn.Conv2d(D, 16, 3, padding=1)
        self.up_block = ResidualBlock(32, 16)
        self.head = nn.Conv2d(16, 3, 3, padding=1)

    def forward(
        self,
        noisy: torch.Tensor,
        timestep: torch.Tensor,
        context: torch.Tensor,
        noise: torch.Tensor,
    ) -> SimpleNamespace:
        half = torch.arange(D // 2, device=noisy.device)
        angles = timestep[:, None].float() * torch.exp(-half / (D // 2) * 9.2)
        time_BD = self.time(torch.cat([angles.sin(), angles.cos()], dim=-1))
        skip = self.down_block(self.stem(noisy), time_BD)
        x = self.attention(self.middle(self.down(skip), time_BD), context)
        x = self.up(F.interpolate(x, scale_factor=2.0, mode="nearest"))
        x = self.head(self.up_block(torch.cat([x, skip], dim=1), time_BD))
        return SimpleNamespace(loss=F.mse_loss(x.float(), noise))


def unet() -> tuple[nn.Module, Batch]:
    return UNet(), {
        "noisy": torch.randn(B, 3, 16, 16),
        "timestep": torch.randint(0, 1000, (B,)),
        "context": torch.randn(B, T, D),
        "noise": torch.randn(B, 3, 16, 16),
    }


MODELS = {
    make.__name__: make for make in (gpt2, llama, qwen3_moe, bert, resnet, vit, t5, whisper, recurrent, unet)
}


def make(name: str, seed: int = 0) -> tuple[nn.Module, Batch]:
    """A model in training mode and a batch, on the CPU; the same for the same seed."""
    torch.manual_seed(seed)
    model, batch = MODELS[name]()
    return model.train(), batch


def train(
    model: nn.Module,
    batch: Batch,
    steps: int,
    *,
    fused: bool = False,
    autocast: bool = False,
) -> list[float]:
    """The losses of some AdamW steps with clipped gradients, on the device where the model is."""
    device = next(model.parameters()).device.type
    batch = {name: tensor.to(device) for name, tensor in batch.items()}
    form = {"fused": True} if fused else {"foreach": True}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, **form)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        with torch.autocast(device, torch.bfloat16, enabled=autocast):
            loss = model(**batch).loss
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.detach())
    return [loss.item() for loss in losses]
