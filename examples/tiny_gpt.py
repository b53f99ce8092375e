"""A small GPT, trained on the CPU from a dataset.    python examples/tiny_gpt.py DIR [STEPS]"""

# ruff: noqa: T201
from __future__ import annotations

import sys

import torch
import torch.nn.functional as F
from torch import nn

import shardmill

BLOCK, BATCH, WIDTH, HEADS, LAYERS = 64, 4, 64, 4, 2


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.mlp(self.norm2(x))


class TinyGPT(nn.Module):
    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(vocab_size, WIDTH), nn.Embedding(BLOCK, WIDTH)
        self.layers, self.norm = nn.Sequential(*[Layer() for _ in range(LAYERS)]), nn.LayerNorm(WIDTH)
        nn.init.normal_(self.token.weight, std=0.02)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.token(x) + self.place(torch.arange(x.shape[1]))
        return self.norm(self.layers(hidden)) @ self.token.weight.T


def loss_of(model: TinyGPT, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(x).flatten(0, 1), y.flatten())


@torch.no_grad()
def loss_on(split: shardmill.dataset.Split, model: TinyGPT, most: int = 10) -> float:
    """Return the mean loss over at most `most` blocks of the split."""
    losses = [
        loss_of(model, x, y) for _, (x, y) in zip(range(most), split.batches(1, BLOCK, tensors=True), strict=False)
    ]
    return float(torch.stack(losses).mean())


@torch.no_grad()
def go_on(model: TinyGPT, tokens: torch.Tensor, count: int) -> torch.Tensor:
    """Return the tokens, followed by `count` tokens drawn from the model."""
    for _ in range(count):
        likely, ids = model(tokens[None, -BLOCK:])[0, -1].topk(20)
        tokens = torch.cat([tokens, ids[torch.multinomial(likely.softmax(0), 1)]])
    return tokens


def train(folder: str, steps: int = 60) -> list[float]:
    """Return the loss of each step."""
    torch.manual_seed(0)
    data = shardmill.open(folder)
    model = TinyGPT(data.manifest["tokenizer"]["vocab_size"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    batches = data["train"].batches(BATCH, BLOCK, seed=0, epochs=None, tensors=True)
    for _, (x, y) in zip(range(steps), batches, strict=False):
        loss = loss_of(model, x, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if len(losses) % 10 == 0:
            print(f"step {len(losses):4}  loss {loss.item():.3f}", flush=True)
    if "val" in data and len(data["val"]) > BLOCK:
        print(f"loss on val {loss_on(data['val'], model):.3f}")
    begin = torch.from_numpy(data["train"][:8].astype("int64"))
    print("---", data.decode(go_on(model, begin, 24).numpy()), sep="\n")
    return losses


if __name__ == "__main__":
    train(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 60)
