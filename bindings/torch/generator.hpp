// PyTorch's generator of random numbers, of which a process has one: whoever draws from it between
// two others changes what they get.
#pragma once

#include <cstdint>

#include "millrace/stages/stage.hpp"

namespace millrace::on_torch {

/// Sees whether anybody draws while it lives. Cost: about a microsecond.
/// Thread-safety: externally synchronised.
class GeneratorWatch {
 public:
  GeneratorWatch();
  [[nodiscard]] bool has_drawn() const;

 private:
  std::uint64_t before_;
};

/// Seeds it for one unit of one stage: by seed, step, first sample, slice and `number`.
void seed_generator(const PassContext& context, std::uint32_t number);

}  // namespace millrace::on_torch
