// Fixed-order sums of gradients.
#include "run/gradients.hpp"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

namespace millrace::run {

namespace {

template <class T>
void add(Tensor& sum, const Tensor& term) {
  const auto to = sum.as<T>();
  const auto from = term.as<T>();
  for (std::size_t i = 0; i < to.size(); ++i) to[i] += from[i];
}

void require_alike(const Tensor& a, const Tensor& b, Stage stage) {
  if (a.dtype() == b.dtype() && a.dims() == b.dims()) return;
  throw Mismatch("gradients of stage " + std::to_string(stage.value) +
                 " that are to be added are of " + name_of(a.dtype()) + " " + to_string(a.dims()) +
                 " and " + name_of(b.dtype()) + " " + to_string(b.dims()));
}

}  // namespace

void add_gradient(Tensor& sum, const Tensor& term, Stage stage) {
  require_alike(sum, term, stage);
  require(sum.dtype() == DType::F32 || sum.dtype() == DType::F64,
          [&] { return std::string("a gradient is f32 or f64, not ") + name_of(sum.dtype()); });
  if (sum.dtype() == DType::F32)
    add<float>(sum, term);
  else
    add<double>(sum, term);
}

Tensor copy_into(TensorPool& pool, const Tensor& from) {
  if (from.is_reference()) return from.another_reference();
  Tensor copy = pool.make(from.dtype(), from.dims());
  if (from.bytes() != 0) std::memcpy(copy.data(), from.data(), from.bytes());
  return copy;
}

void GradientTree::begin_step(const SumTree& tree, LeafRange node, int passes_per_leaf) {
  clear();
  sums_.emplace(tree, node);
  passes_per_leaf_ = passes_per_leaf;
}

/// A copy of the gradients, which are 0 afterwards.
TensorList GradientTree::take_gradients(TensorPool& pool, StashMeter& meter) const {
  TensorList taken;
  for (Parameter* parameter : parameters_) {
    Tensor& gradient = parameter->gradient;
    taken.push_back(copy_into(pool, gradient));
    if (gradient.bytes() != 0) std::memset(gradient.data(), 0, gradient.bytes());
  }
  meter.add(taken.bytes());
  return taken;
}

/// Of a sum that is dropped then.
void GradientTree::put_gradients(const TensorList& sum, StashMeter& meter) const {
  meter.remove(sum.bytes());
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    if (sum[i].bytes() != 0)
      std::memcpy(parameters_[i]->gradient.data(), sum[i].data(), sum[i].bytes());
}

void GradientTree::open(int leaf, TensorPool& pool, StashMeter& meter) {
  if (open_ && open_->number == leaf) return;
  if (open_) {
    open_->sum = take_gradients(pool, meter);
    interrupted_.push_back(*std::exchange(open_, std::nullopt));
  }
  const auto begun = std::ranges::find(interrupted_, leaf, &Leaf::number);
  if (begun == interrupted_.end()) {
    open_.emplace(Leaf{leaf});
    return;
  }
  put_gradients(begun->sum, meter);
  open_.emplace(Leaf{leaf, begun->passes});
  interrupted_.erase(begun);
}

void GradientTree::close(bool is_empty, TensorPool& pool, StashMeter& meter) {
  if (++open_->passes < passes_per_leaf_) return;
  std::optional<TensorList> sum;
  if (!is_empty) sum = take_gradients(pool, meter);
  sums_->give(open_->number, std::move(sum), [&](TensorList& to, const TensorList& term) {
    for (std::size_t i = 0; i < to.size(); ++i) add_gradient(to[i], term[i], stage_);
    meter.remove(term.bytes());
  });
  open_.reset();
  if (!sums_->is_complete()) return;
  const auto whole = sums_->take();
  if (whole) put_gradients(*whole, meter);
  has_sum_ = whole.has_value();
  given_ = true;
}

void GradientTree::clear() noexcept {
  if (sums_) sums_->clear();
  open_.reset();
  interrupted_.clear();
  given_ = has_sum_ = false;
}

namespace {

void write(Tensor& to, const Tensor& from) {
  if (from.bytes() != 0) std::memcpy(to.data(), from.data(), from.bytes());
}

}  // namespace

Reduction::Reduction(std::vector<ReductionMember> members, std::vector<StageTie> ties)
    : members_(std::move(members)) {
  for (const ReductionMember& member : members_) {
    parameters_.emplace_back();
    if (member.body != nullptr) {
      parameters_.back() = member.body->parameters();
      ++here_;
    } else if (std::ranges::find(other_ranks_, member.rank) == other_ranks_.end()) {
      other_ranks_.push_back(member.rank);
    }
  }
  find_tied(ties);
}

void Reduction::find_tied(const std::vector<StageTie>& ties) {
  const auto count_of = [&](Stage stage) {
    std::size_t count = 0;
    for (const auto& tie : ties_)
      count += static_cast<std::size_t>(
          std::ranges::count(tie, stage, [](const TiedGradient& tied) { return tied.stage; }));
    return count;
  };
  for (const StageTie& tie : ties) {
    ties_.emplace_back();
    for (const StageWeight& weight : tie.weights) {
      const TiedGradient tied{weight.stage, count_of(weight.stage), parameter_of(weight)};
      require(ties_.back().empty() || ties_.back().back().stage != tied.stage ||
                  !lives_here(tied.stage) || ties_.back().back().parameter < tied.parameter,
              [&] {
                return "tied weight '" + weight.name + "' of stage " +
                       std::to_string(weight.stage.value) +
                       " comes before the one named before it; they are named in the order of the "
                       "layers";
              });
      ties_.back().push_back(tied);
    }
  }
}

/// 0 where the stage lives elsewhere.
std::size_t Reduction::parameter_of(const StageWeight& weight) const {
  for (std::size_t i = 0; i < members_.size(); ++i) {
    if (members_[i].stage != weight.stage || members_[i].body == nullptr) continue;
    const auto found = std::ranges::find(
        parameters_[i], weight.name, [](const Parameter* parameter) { return parameter->name; });
    require(found != parameters_[i].end(), [&] {
      return "stage " + std::to_string(weight.stage.value) + " has no parameter '" + weight.name +
             "', which the plan ties";
    });
    return static_cast<std::size_t>(found - parameters_[i].begin());
  }
  return 0;
}

bool Reduction::lives_here(Stage stage) const {
  return std::ranges::any_of(members_, [&](const ReductionMember& member) {
    return member.stage == stage && member.body != nullptr;
  });
}

TensorList Reduction::gradients_for(Rank rank,
                                    Replica replica,
                                    Stage stage,
                                    TensorPool& pool) const {
  const auto is_sender = [&](const ReductionMember& member) {
    return member.replica == replica && member.stage == stage;
  };
  const bool has_copy = std::ranges::any_of(members_, [&](const ReductionMember& member) {
    return member.rank == rank && member.stage == stage;
  });
  const auto sender = std::ranges::find_if(members_, is_sender) - members_.begin();
  const std::vector<Parameter*>& parameters = parameters_[static_cast<std::size_t>(sender)];
  TensorList given;
  if (has_copy) {
    for (const Parameter* parameter : parameters)
      given.push_back(copy_into(pool, parameter->gradient));
    return given;
  }
  for (const auto& tie : ties_)
    for (const TiedGradient& tied : tie)
      if (tied.stage == stage)
        given.push_back(copy_into(pool, parameters[tied.parameter]->gradient));
  return given;
}

/// Of a member: its own where it lives here, else what it sent.
Reduction::Gradients Reduction::gradients(std::size_t member,
                                          std::vector<TensorList>& received) const {
  Gradients all;
  for (Parameter* parameter : parameters_[member]) all.push_back(&parameter->gradient);
  if (members_[member].body == nullptr)
    for (std::size_t k = 0; k < received[member].size(); ++k) all.push_back(&received[member][k]);
  return all;
}

/// Afterwards every copy of the stage has the sum, in what it keeps or what it sent.
void Reduction::add_replicas(Stage stage,
                             std::vector<TensorList>& received,
                             TensorPool& pool) const {
  std::vector<Gradients> copies;
  for (std::size_t i = 0; i < members_.size(); ++i)
    if (members_[i].stage == stage) copies.push_back(gradients(i, received));
  for (const Gradients& copy : copies)
    if (copy.size() != copies.front().size())
      throw Mismatch("copies of stage " + std::to_string(stage.value) + " have " +
                     std::to_string(copies.front().size()) + " and " + std::to_string(copy.size()) +
                     " parameters");
  if (copies.size() < 2) return;
  for (std::size_t k = 0; k < copies.front().size(); ++k) {
    Tensor sum = copy_into(pool, *copies.front()[k]);
    for (std::size_t i = 1; i < copies.size(); ++i) add_gradient(sum, *copies[i][k], stage);
    for (const Gradients& copy : copies) write(*copy[k], sum);
  }
}

void Reduction::add_tie(const std::vector<TiedGradient>& tie,
                        std::vector<TensorList>& received,
                        TensorPool& pool) const {
  const auto gradient = [&](const TiedGradient& tied, std::size_t member) -> Tensor& {
    const bool here = members_[member].body != nullptr;
    const Gradients all = gradients(member, received);
    const std::size_t place = here ? tied.parameter : tied.sent;
    if (place >= all.size())
      throw Mismatch("stage " + std::to_string(tied.stage.value) + " sent " +
                     std::to_string(all.size()) + " tied gradients, not as many as it has");
    return *all[place];
  };
  const auto for_each_copy = [&](const TiedGradient& tied, bool all, const auto& use) {
    for (std::size_t i = 0; i < members_.size(); ++i) {
      if (members_[i].stage != tied.stage) continue;
      // Of a stage that also lives here, others sent all gradients, which are in the sum.
      if (lives_here(tied.stage) && members_[i].body == nullptr) continue;
      use(gradient(tied, i));
      if (!all) return;
    }
  };
  Tensor sum;
  for (const TiedGradient& tied : tie)
    for_each_copy(tied, false, [&](const Tensor& term) {
      if (!sum)
        sum = copy_into(pool, term);
      else
        add_gradient(sum, term, tied.stage);
    });
  for (const TiedGradient& tied : tie)
    if (lives_here(tied.stage))
      for_each_copy(tied, true, [&](Tensor& target) { write(target, sum); });
}

void Reduction::add(std::vector<TensorList>& received, TensorPool& pool) const {
  for (std::size_t i = 0; i < members_.size(); ++i)
    if (i == 0 || members_[i].stage != members_[i - 1].stage)
      add_replicas(members_[i].stage, received, pool);
  for (const auto& tie : ties_) add_tie(tie, received, pool);
}

}  // namespace millrace::run
