// The parameters that a process hosts, in the one global order that norms and hashes use, with the
// optimizer's arrays beside them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "millrace/scheduler/run/executor.hpp"
#include "millrace/training/gradient_norm.hpp"
#include "millrace/training/optimizer.hpp"
#include "millrace/training/team.hpp"

namespace millrace {

/// Every hosted parameter with its place in the global order (ascending by name, over all members
/// of the team) and its optimizer state.
class ModelState {
 public:
  /// `rank_of` tells on which rank a hosted stage lives. Throws InvalidArgument when a name is
  /// empty, is used twice, or a parameter is not f32.
  ModelState(const Shape& shape,
             std::span<const HostedStage> stages,
             const Optimizer& optimizer,
             Team& team);

  /// One norm over all stages of all members; each rank adds up its own parameters.
  GradientNorm norm(Executor& executor, std::optional<double> limit);
  /// One optimizer step on every stage, then the gradients are zero. `settings.decays` is set here.
  void update(Executor& executor, const UpdateSettings& settings);
  void zero_gradients() noexcept;

  [[nodiscard]] std::string hash() const;
  [[nodiscard]] std::vector<Parameter*> parameters() const;

 private:
  struct Held {
    Parameter* parameter = nullptr;
    Stage stage;
    std::size_t number = 0;  // in the global order
    bool first_copy = true;  // of replica 0: the one that norms and hashes look at
    std::vector<Tensor> arrays;
    std::vector<std::span<float>> state;  // over `arrays`
  };

  void add_stage(Rank rank, const HostedStage& hosted);
  void number_globally();
  static void move(const Optimizer& optimizer, Held& held, UpdateSettings settings);

  const Optimizer* optimizer_;
  Team* team_;
  std::vector<std::vector<Held>> of_rank_;
  std::vector<double> sums_;  // of squares, by global number
};

}  // namespace millrace
