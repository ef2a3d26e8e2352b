"""Two ranks under a launch against plain loops: rank 0 prints what is equal to the bit. test_models.py runs it."""

import copy

from plain_loop import Joins, Many, Net, layers, made, many, pipeline_of, plain_replicas, plain_step, points, same, sgd
from plain_loop import summed, words
from torch import nn


def exported():
    plain, model = made(Net), made(Net)
    tokens, mask, targets = words()
    pipeline = pipeline_of(model, example=(tokens[:4], mask[:4]), schedule="zb-h1", split="time")
    pipeline.step((tokens, mask), targets)
    plain_step(plain, sgd(plain), (tokens, mask), targets)
    same(pipeline.state_dict(), plain.state_dict())
    print("exported")


def dtypes():
    inputs, y = many()
    plain = made(lambda: nn.ModuleList([Many(), Joins()]))
    model = copy.deepcopy(plain)
    pipeline = pipeline_of(list(model), sgd(model), schedule="zb-h1")
    pipeline.step(inputs, y)
    optimizer = sgd(plain)
    for part in zip(*(one.chunk(4) for one in (*inputs, y))):
        (summed(plain[1](*plain[0](*part[:-1])), part[-1]) / 16).backward()
    optimizer.step()
    same(pipeline.state_dict(), plain.state_dict())
    print("dtypes")


def loaded():
    x, y = points()
    plain, model = layers(), layers()
    pipeline = pipeline_of(model)
    first = {name: tensor.clone() for name, tensor in pipeline.state_dict().items()}
    pipeline.step(x, y)
    pipeline.step(x, y)
    pipeline.load_state_dict(first)
    pipeline.step(x, y)
    plain_step(plain, sgd(plain), (x,), y)
    same(pipeline.state_dict(), plain.state_dict())
    print("loaded")


def replicas():
    """Of a pipeline of one rank."""
    x, y = points()
    plain, model = layers(), layers()
    pipeline = pipeline_of(model, ranks=1, data_parallel=2, clip_norm=0.5)
    pipeline.step(x, y)
    plain_replicas(plain, sgd(plain), x, y, 2, 0.5)
    same(pipeline.state_dict(), plain.state_dict())
    print("replicas")


def skipped():
    x, y = points()
    model = layers()
    before = copy.deepcopy(model.state_dict())
    pipeline = pipeline_of(model, precision="f16", loss_scale=2.0**40)
    assert pipeline.step(x, y).skipped
    same(pipeline.state_dict(), before)
    print("skipped")


for check in (exported, dtypes, loaded, replicas, skipped):
    check()
