"""A small GPT learns to spell like the King James Bible. The model returns logits and loss."""

import gzip
import pathlib

import torch
import torch.nn.functional as F
from torch import nn

n_layer, n_head, n_embd, block_size = 4, 4, 32, 32
batch_size, micro_batches, max_iters = 16, 8, 8
torch.manual_seed(1337)

text = gzip.open(pathlib.Path(__file__).parents[3] / "data/king_james.txt.gz", "rt").read()[:50_000]
chars = sorted(set(text))
data = torch.tensor([chars.index(char) for char in text])
train_data, val_data = data[:45_000], data[45_000:]


def get_batch(data, batch_size):
    starts = torch.randint(len(data) - block_size, (batch_size,))
    x = torch.stack([data[i : i + block_size] for i in starts])
    y = torch.stack([data[i + 1 : i + 1 + block_size] for i in starts])
    return x, y


class CausalSelfAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        self.c_proj = nn.Linear(n_embd, n_embd)

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(n_embd, dim=2)
        q, k, v = (one.view(B, T, n_head, C // n_head).transpose(1, 2) for one in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.attn = nn.LayerNorm(n_embd), CausalSelfAttention()
        self.ln_2 = nn.LayerNorm(n_embd)
        self.mlp = nn.Sequential(nn.Linear(n_embd, 4 * n_embd), nn.GELU(), nn.Linear(4 * n_embd, n_embd))

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.transformer = nn.ModuleDict({
            "wte": nn.Embedding(len(chars), n_embd),
            "wpe": nn.Embedding(block_size, n_embd),
            "h": nn.ModuleList([Block() for _ in range(n_layer)]),
            "ln_f": nn.LayerNorm(n_embd),
        })
        self.lm_head = nn.Linear(n_embd, len(chars), bias=False)
        nn.init.normal_(self.lm_head.weight, std=0.02)

    def configure_optimizer(self, learning_rate):
        decayed = [p for p in self.parameters() if p.dim() >= 2]
        others = [p for p in self.parameters() if p.dim() < 2]
        return torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
                                 lr=learning_rate, betas=(0.9, 0.95))

    def forward(self, idx, targets=None):
        pos = torch.arange(idx.size(1), device=idx.device)
        x = self.transformer.wte(idx) + self.transformer.wpe(pos)
        for block in self.transformer.h:
            x = block(x)
        logits = self.lm_head(self.transformer.ln_f(x))
        if targets is None:
            return logits, None
        return logits, F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))


model = GPT()
optimizer = model.configure_optimizer(learning_rate=1e-3)


@torch.no_grad()
def estimate_loss(eval_iters=4):
    model.eval()
    losses = [model(*get_batch(val_data, batch_size))[1].item() for _ in range(eval_iters)]
    model.train()
    return sum(losses) / eval_iters


for it in range(max_iters):
    X, Y = get_batch(train_data, batch_size)
    optimizer.zero_grad(set_to_none=True)
    for x, y in zip(X.chunk(micro_batches), Y.chunk(micro_batches)):
        logits, loss = model(x, y)
        (loss / micro_batches).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    print(f"iter {it}: val loss {estimate_loss()}")
