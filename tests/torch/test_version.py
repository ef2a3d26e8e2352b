"""A version of PyTorch that was not tested is tried once, and refused by name where it does not fit."""

import pytest
import torch

import millrace
from millrace.torch import split_backward, version


@pytest.fixture
def other_version(monkeypatch):
    monkeypatch.setattr(torch, "__version__", "2.99.0")
    version.require_torch.cache_clear()
    yield
    version.require_torch.cache_clear()


def test_another_version_that_fits_is_accepted(other_version):
    before = torch.get_rng_state()
    version.require_torch()

    assert torch.equal(before, torch.get_rng_state())
    assert version.require_torch.cache_info().misses == 1


def test_a_version_that_changes_bits_is_refused_by_name(other_version, monkeypatch):
    accumulate = split_backward.accumulate
    monkeypatch.setattr(split_backward, "accumulate", lambda edges, gradients, parameters: accumulate(
        edges, [2 * one for one in gradients], parameters))
    with pytest.raises(millrace.Error, match="torch 2.99.0 changes the bits of a split backward pass: use 2.13"):
        version.require_torch()


def test_a_version_without_the_functions_is_refused_by_name(other_version, monkeypatch):
    monkeypatch.setattr(split_backward, "_run", None)
    with pytest.raises(millrace.Error, match="torch 2.99.0 cannot split a backward pass"):
        version.require_torch()
