// What messages bring, for whoever counts how many of them lie in a channel.
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <tuple>
#include <vector>

#include "millrace/core/ids.hpp"
#include "millrace/scheduler/plan/program.hpp"
#include "millrace/scheduler/plan/stage_graph.hpp"
#include "millrace/stages/models.hpp"
#include "millrace/stages/stage.hpp"

namespace millrace::detail {

/// Bytes of the tensors of every message of a plan. Thread-safety: immutable once made.
class TensorSizes {
 public:
  /// Of a model cut so, whose edges the shape has, in units of that size.
  TensorSizes(const ModelSpec& model,
              std::span<const int> boundaries,
              const Shape& shape,
              const UnitSize& unit);

  /// None is empty.
  [[nodiscard]] const std::vector<std::size_t>& of(const Message& message) const;

 private:
  std::map<std::tuple<Direction, Stage, std::uint8_t>, std::vector<std::size_t>> sizes_;
};

/// The depths of `program`, which is run so many times before all ranks wait for each other, with
/// what its messages bring.
[[nodiscard]] std::vector<ChannelDepth> depths_with_tensors(const Program& program,
                                                            const TensorSizes& sizes,
                                                            int passes);

}  // namespace millrace::detail
