// The parameters that a process hosts, in the one global order that norms and hashes use, with the
// optimizer's arrays beside them.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
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
  /// Calls `visit` with one copy of every parameter hosted here, in the global order, and gives the
  /// other copies the gradients that it left.
  void visit_gradients(const std::function<void(std::span<Parameter* const>)>& visit);
  /// Freezes or frees what the pattern names, with what is tied to it. Throws InvalidArgument when
  /// no member has a parameter of such a name.
  void freeze(std::string_view pattern, bool frozen);
  /// One norm over all stages of all members; each rank adds up its own parameters. Frozen ones are
  /// not looked at.
  GradientNorm norm(Executor& executor, std::optional<double> limit);
  /// One optimizer step on every stage, frozen parameters left out; then the gradients are zero.
  /// `settings.decays` is set here.
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
  void choose_speakers();
  [[nodiscard]] std::set<std::string> names_of(std::string_view pattern) const;
  void tie(const std::vector<std::vector<std::string>>& groups);
  static void move(const Optimizer& optimizer, Held& held, UpdateSettings settings);

  const Optimizer* optimizer_;
  Team* team_;
  std::vector<std::vector<Held>> of_rank_;
  std::vector<std::string> names_;  // of all members, by global number
  std::vector<double> sums_;        // of squares, by global number
  std::vector<Parameter*> hosted_;  // one copy of each that is hosted here, in the global order
  std::vector<std::pair<Parameter*, const Parameter*>> others_;  // further copies, and of what
  std::vector<std::vector<std::string>> groups_;                 // tied names
  std::optional<TiedWeights> tied_;
};

}  // namespace millrace
