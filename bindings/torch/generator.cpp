// The state of a Mersenne Twister changes with every number: its place, or all of it.
#include "torch/generator.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Generator.h>
#include <mutex>

#include "millrace/core/random.hpp"

namespace millrace::on_torch {
namespace {

/// Where the generator stands, with one word of its state, which is another one after 624 numbers.
std::uint64_t place_of_generator() {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::scoped_lock lock(generator.mutex());
  auto* twister = generator.get<at::CPUGeneratorImpl>();
  const auto data = twister->engine().data();
  return (std::uint64_t{data.next_} << 48U) ^ (static_cast<std::uint64_t>(data.left_) << 32U) ^
         data.state_[0];
}

}  // namespace

GeneratorWatch::GeneratorWatch() : before_(place_of_generator()) {}

bool GeneratorWatch::has_drawn() const {
  return place_of_generator() != before_;
}

void seed_generator(const PassContext& context, std::uint32_t number) {
  const auto block = random_block(context.key(Purpose::Dropout, 0, number),
                                  static_cast<std::uint32_t>(context.first_position));
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::scoped_lock lock(generator.mutex());
  generator.set_current_seed((std::uint64_t{block[0]} << 32U) | block[1]);
}

}  // namespace millrace::on_torch
