"""A small ResNet, built as torchvision builds them, learns handwritten digits."""

import gzip
import pathlib

import millrace.torch
import torch
from torch import nn

batch_size, micro_batches, epochs = 64, 4, 2
torch.manual_seed(0)

lines = gzip.open(pathlib.Path(__file__).parents[3] / "data/digits.csv.gz", "rt").read().split()
rows = torch.tensor([[float(number) for number in line.split(",")] for line in lines[: 6 * batch_size]])
images, labels = rows[:, :64].reshape(-1, 1, 8, 8) / 16, rows[:, 64].long()


def conv3x3(in_planes, out_planes, stride=1):
    return nn.Conv2d(in_planes, out_planes, kernel_size=3, stride=stride, padding=1, bias=False)


class BasicBlock(nn.Module):
    def __init__(self, in_planes, planes, stride=1):
        super().__init__()
        self.conv1, self.bn1 = conv3x3(in_planes, planes, stride), nn.BatchNorm2d(planes)
        self.conv2, self.bn2 = conv3x3(planes, planes), nn.BatchNorm2d(planes)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride != 1 or in_planes != planes:
            self.downsample = nn.Sequential(nn.Conv2d(in_planes, planes, 1, stride, bias=False), nn.BatchNorm2d(planes))

    def forward(self, x):
        identity = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += identity
        return self.relu(out)


class ResNet(nn.Module):
    def __init__(self, layers, num_classes=10):
        super().__init__()
        self.conv1, self.bn1, self.relu = conv3x3(1, 8), nn.BatchNorm2d(8), nn.ReLU(inplace=True)
        self.layer1 = self._make_layer(8, 8, layers[0])
        self.layer2 = self._make_layer(8, 16, layers[1], stride=2)
        self.layer3 = self._make_layer(16, 32, layers[2], stride=2)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(32, num_classes)

    def _make_layer(self, in_planes, planes, blocks, stride=1):
        first = BasicBlock(in_planes, planes, stride)
        return nn.Sequential(first, *[BasicBlock(planes, planes) for _ in range(1, blocks)])

    def forward(self, x):
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.fc(torch.flatten(self.avgpool(x), 1))


model = ResNet([2, 2, 2])
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs)
pipeline = millrace.torch.Pipeline(model, example=images[:16], split=["layer2", "layer3"], loss=criterion,
                                   optimizer=optimizer, ranks=3, micro_batches=micro_batches, schedule="zb-h1")
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(images, labels), batch_size, shuffle=True)

for epoch in range(epochs):
    for inputs, targets in loader:
        optimizer.zero_grad()
        total = pipeline.step(inputs, targets).mean_loss
        print(f"epoch {epoch}: loss {total}")
    scheduler.step()

model.eval()
with torch.no_grad():
    accuracy = (model(images).argmax(1) == labels).float().mean()
print(f"accuracy {accuracy:.4f}")
