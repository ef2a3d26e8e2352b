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
#include "training/tied_weights.hpp"

namespace millrace {

/// Every hosted parameter with its place in the global order (ascending by name, over all members
/// of the team) and its optimizer state.
class ModelState {
 public:
  /// Tied weights start equal. Throws InvalidArgument when a name is empty, is used twice, a
  /// parameter is not f32, or `tied` names what cannot be one weight.
  ModelState(const Shape& shape,
             std::span<const HostedStage> stages,
             const Optimizer& optimizer,
             const std::vector<std::vector<std::string>>& tied,
             Team& team);

  /// Adds up the gradients of tied weights. Once per step, before the norm.
  void share_tied_gradients() { tied_->share_gradients(); }
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
    bool first_copy = true;  // of replica 0: the one that hashes look at
    bool in_norm = true;     // the one that speaks for its weight: first copy, first of its group
    std::vector<Tensor> arrays;
    std::vector<std::span<float>> state;  // over `arrays`
  };

  void add_stage(Rank rank, const HostedStage& hosted);
  void number_globally();
  void tie(const std::vector<std::vector<std::string>>& groups);
  static void move(const Optimizer& optimizer, Held& held, UpdateSettings settings);

  const Optimizer* optimizer_;
  Team* team_;
  std::vector<std::vector<Held>> of_rank_;
  std::vector<double> sums_;  // of squares, by global number
  std::optional<TiedWeights> tied_;
};

}  // namespace millrace
