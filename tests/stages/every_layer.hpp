// Every kind of layer, in every form, on samples and on sequences.
#pragma once

#include <vector>

#include "stages/layer_probe.hpp"

namespace millrace::test {

inline std::vector<LayerProbe> every_layer(DType dtype) {
  const TensorType rows{dtype, {kSamples, 7}};
  const TensorType sequence{dtype, {kSamples, kPositions, 4}};
  const TensorType ids{DType::I32, {kSamples, kPositions}, false};
  std::vector<LayerProbe> probes;
  const auto add = [&](const LayerSpec& spec, std::vector<TensorType> types) {
    probes.emplace_back(spec, std::move(types), dtype);
  };
  for (const char* f : {"none", "relu", "gelu", "tanh"}) {
    add({"linear", {{"out", 5}, {"activation", f}}}, {rows});
    add({"activation", {{"function", f}}}, {rows});
  }
  add({"linear", {{"out", 1}}}, {rows});
  for (const TensorType& type : {rows, sequence}) {
    add({"linear", {{"out", 3}, {"activation", "tanh"}}}, {type});
    add({"layer_norm"}, {type});
    add({"dropout", {{"rate", 0.4}}}, {type});
    add({"add"}, {type, type});
    add({"add"}, {type, type, type});
  }
  add({"embedding", {{"rows", 5}, {"columns", 3}}}, {ids});
  add({"running_mean"}, {sequence});
  return probes;
}

}  // namespace millrace::test
