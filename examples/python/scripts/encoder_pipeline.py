"""An encoder learns whether a line of the King James Bible is of its beginning or of its end: lines of
different lengths, padded, with a mask."""

import gzip
import pathlib

import millrace.torch
import torch
from torch import nn

width, max_length, batch_size, micro_batches, epochs = 32, 48, 32, 8, 2
torch.manual_seed(3)

lines = gzip.open(pathlib.Path(__file__).parents[3] / "data/king_james.txt.gz", "rt").read().splitlines()
chosen = [(line, 0) for line in lines[:112]] + [(line, 1) for line in lines[-112:]]
chars = sorted({char for line, _ in chosen for char in line})


class Lines(torch.utils.data.Dataset):
    def __len__(self):
        return len(chosen)

    def __getitem__(self, at):
        line, label = chosen[at]
        ids = [1 + chars.index(char) for char in line[:max_length]]
        padding = [0] * (max_length - len(ids))
        return {"input_ids": torch.tensor(ids + padding),
                "attention_mask": torch.tensor([True] * len(ids) + [False] * len(padding)),
                "labels": torch.tensor(label)}


class Encoder(nn.Module):
    def __init__(self, layers=4):
        super().__init__()
        self.embed = nn.Embedding(1 + len(chars), width, padding_idx=0)
        self.position = nn.Parameter(0.02 * torch.randn(max_length, width))
        self.layers = nn.ModuleList([nn.TransformerEncoderLayer(width, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
                                     for _ in range(layers)])
        self.norm, self.classifier = nn.LayerNorm(width), nn.Linear(width, 2)

    def forward(self, input_ids, attention_mask):
        x = self.embed(input_ids) + self.position
        for layer in self.layers:
            x = layer(x, src_key_padding_mask=~attention_mask)
        counts = attention_mask.unsqueeze(-1)
        return self.classifier((self.norm(x) * counts).sum(1) / counts.sum(1))


model = Encoder()
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=6)
train, held_out = torch.utils.data.random_split(Lines(), [192, 32])
loader = torch.utils.data.DataLoader(train, batch_size, shuffle=True, drop_last=True)
example = {"input_ids": torch.ones(4, max_length).long(), "attention_mask": torch.ones(4, max_length).bool()}
pipeline = millrace.torch.Pipeline(model, example=example, loss=criterion, optimizer=optimizer, clip_norm=1.0, ranks=4)

for epoch in range(epochs):
    for batch in loader:
        labels = batch.pop("labels")
        optimizer.zero_grad()
        pipeline.step(batch, labels)
        scheduler.step()
    with torch.no_grad():
        model.eval()
        batch = next(iter(torch.utils.data.DataLoader(held_out, len(held_out))))
        labels = batch.pop("labels")
        print(f"epoch {epoch}: held out {criterion(model(**batch), labels).item()}")
        model.train()
