// Every kind of layer, in every form, on samples and on sequences.
#pragma once

#include <cstdint>
#include <tuple>
#include <vector>

#include "stages/layer_probe.hpp"

namespace millrace::test {

/// Layers of images, with windows that touch, overlap, leave pixels out and go
/// beyond the border.
template <class Add>
void add_images(const Add& add, DType dtype) {
  const TensorType image{dtype, {kSamples, 5, 4, 6}};
  const auto whole = [](std::int64_t number) { return number; };
  for (const char* pool : {"max_pool", "average_pool"}) {
    add({pool, {{"kernel", whole(2)}}}, {image});
    add({pool, {{"kernel", whole(3)}, {"stride", whole(2)}, {"padding", whole(1)}}}, {image});
    add({pool}, {image});
  }
  add({"conv2d", {{"out", whole(3)}, {"kernel", whole(1)}, {"stride", whole(2)}}}, {image});
  add({"conv2d", {{"out", whole(2)}, {"kernel", whole(3)}, {"padding", whole(1)}}}, {image});
  add({"conv2d",
       {{"out", whole(2)}, {"kernel", whole(3)}, {"padding", whole(1)}, {"stride", whole(3)}}},
      {image});
  add({"conv2d", {{"out", whole(1)}, {"kernel", whole(4)}}}, {image});
  add({"batch_norm"}, {image});
  for (const std::int64_t groups : {1, 3, 6}) add({"group_norm", {{"groups", groups}}}, {image});
  add({"reshape", {{"to", "20x6"}}}, {image});
}

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
  for (const TensorType& type : {rows, sequence}) {
    add({"rms_norm"}, {type});
    add({"batch_norm"}, {type});
    add({"batch_norm", {{"statistics", "immediate"}}}, {type});
  }
  add_images(add, dtype);
  add({"embedding", {{"rows", 5}, {"columns", 3}}}, {ids});
  add({"running_mean"}, {sequence});
  add({"positions", {{"context", std::int64_t{4}}}}, {sequence});
  for (const TensorType& type : {TensorType{dtype, {kSamples, 8}}, sequence}) {
    add({"swiglu"}, {type});
    add({"unembedding", {{"words", std::int64_t{5}}}}, {type});
  }
  const TensorType heads{dtype, {kSamples, kPositions, 24}};
  for (const auto& [queries, keys, rotary] :
       {std::tuple{2, 2, 0.0}, {2, 2, 100.0}, {4, 1, 0.0}, {4, 1, 100.0}, {4, 2, 0.0}})
    add({"attention",
         {{"heads", std::int64_t{queries}}, {"kv_heads", std::int64_t{keys}}, {"rotary", rotary}}},
        {heads});
  return probes;
}

}  // namespace millrace::test
