"""An LSTM language model over letters."""

import gzip
import pathlib

import millrace.torch
import torch
from torch import nn

width, length, batch_size, micro_batches, steps = 32, 32, 16, 4, 8
torch.manual_seed(7)

text = gzip.open(pathlib.Path(__file__).parents[3] / "data/king_james.txt.gz", "rt").read()[:20_000]
chars = sorted(set(text))
tokens = torch.tensor([chars.index(char) for char in text])


class LanguageModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(len(chars), width)
        self.lstm1 = nn.LSTM(width, width, batch_first=True)
        self.lstm2 = nn.LSTM(width, width, batch_first=True)
        self.out = nn.Linear(width, len(chars))

    def forward(self, x):
        x, _ = self.lstm1(self.embed(x))
        x, (hidden, _) = self.lstm2(x)
        return self.out(x).transpose(1, 2)  # [samples, letters, places], as the loss has it


model = LanguageModel()
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
pipeline = millrace.torch.Pipeline(model, example=tokens[:128].view(4, 32), split=["lstm2"],
                                   loss=criterion, optimizer=optimizer, ranks=2, micro_batches=4)

for step in range(steps):
    starts = torch.randint(len(tokens) - length, (batch_size,)).tolist()
    rows = torch.stack([tokens[start : start + length + 1] for start in starts])
    inputs, targets = rows[:, :-1], rows[:, 1:]
    optimizer.zero_grad()
    total = pipeline.step(inputs, targets).mean_loss
    print(f"step {step}: loss {total}")
