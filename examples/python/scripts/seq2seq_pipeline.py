"""An encoder and a decoder learn to write words backwards: two inputs of different lengths, padded.
The loss is a mean over all letters of the mini-batch."""

import gzip
import pathlib

import millrace.torch
import torch
from torch import nn

PAD, BOS, EOS = 0, 1, 2
width, longest, batch_size, micro_batches, steps = 32, 12, 32, 4, 8
torch.manual_seed(11)

text = gzip.open(pathlib.Path(__file__).parents[3] / "data/king_james.txt.gz", "rt").read()[:20_000]
words = sorted({word for word in text.lower().split() if word.isalpha() and 3 <= len(word) <= longest})


def encode(word):
    ids = [3 + ord(char) - ord("a") for char in word]
    return ids + [PAD] * (longest - len(ids)), [BOS, *ids[::-1], EOS] + [PAD] * (longest - len(ids))


pairs = [tuple(map(torch.tensor, encode(word))) for word in words]


class Seq2Seq(nn.Module):
    def __init__(self, layers=2):
        super().__init__()
        self.embed = nn.Embedding(29, width, padding_idx=PAD)
        self.position = nn.Parameter(0.1 * torch.randn(longest + 1, width))
        self.encoder = nn.ModuleList([nn.TransformerEncoderLayer(width, 4, 64, dropout=0.0, batch_first=True)
                                      for _ in range(layers)])
        self.decoder = nn.ModuleList([nn.TransformerDecoderLayer(width, 4, 64, dropout=0.0, batch_first=True)
                                      for _ in range(layers)])
        self.out = nn.Linear(width, 29)

    def forward(self, src, tgt):
        padding = src == PAD
        memory = self.embed(src) + self.position[: src.size(1)]
        for layer in self.encoder:
            memory = layer(memory, src_key_padding_mask=padding)
        x = self.embed(tgt) + self.position[: tgt.size(1)]
        causal = nn.Transformer.generate_square_subsequent_mask(tgt.size(1))
        for layer in self.decoder:
            x = layer(x, memory, tgt_mask=causal, memory_key_padding_mask=padding)
        return self.out(x).transpose(1, 2)  # [samples, letters, places], as the loss has it


model = Seq2Seq()
criterion = nn.CrossEntropyLoss(ignore_index=PAD, reduction="sum")
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
loader = torch.utils.data.DataLoader(pairs, batch_size, shuffle=True, drop_last=True)
pipeline = millrace.torch.Pipeline(model, example=(torch.ones(8, 12).long(), torch.ones(8, 13).long()), loss=criterion,
    loss_weight=torch.count_nonzero, split=["decoder.0"], optimizer=optimizer, ranks=2, micro_batches=micro_batches)

for src, tgt in list(loader)[:steps]:
    tgt_in, tgt_out = tgt[:, :-1], tgt[:, 1:]
    optimizer.zero_grad()
    letters = (tgt_out != PAD).sum()
    total = pipeline.step((src, tgt_in), tgt_out).loss_sum
    print(f"loss {total / letters.item()}")
