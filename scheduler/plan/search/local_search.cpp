// Threshold accepting over critical-path moves. A move takes one action to another place of its
// rank, or ends the recompute of a critical backward; where memory is then short, others recompute.
// The orders it yields are timed incrementally and given up once they exceed the threshold.
#include "plan/search/local_search.hpp"

#include <algorithm>
#include <array>

#include "millrace/core/random.hpp"
#include "plan/schedules/list_order.hpp"

namespace millrace::plan {

namespace {

using Draw = std::array<std::uint32_t, 4>;

std::size_t below(std::uint32_t word, std::size_t bound) {
  return static_cast<std::size_t>((std::uint64_t{word} * bound) >> 32U);
}

class LocalSearch {
 public:
  LocalSearch(const Job& job,
              JobOrder order,
              const LocalSearchOptions& options,
              UnitChoice* choice = nullptr)
      : job_(job),
        choice_(choice),
        options_(options),
        evaluator_(job, options.objective),
        order_(std::move(order)),
        best_(order_),
        place_(job.size()) {
    evaluate_start();
    for (std::size_t at = 0; at < order_.size(); ++at) place_[order_[at]] = at;
    double work = 0;
    for (std::size_t r = 0; r < ranks(); ++r) work += job.work(r);
    typical_ticks_ =
        job.passes() * work / static_cast<double>(std::max<std::size_t>(1, job.size()));
  }

  void run(std::int64_t& evaluations);
  [[nodiscard]] const JobOrder& best() const { return best_; }
  /// Makes the choice of recompute the best order's.
  void choose_best();

 private:
  struct Move {
    std::size_t from = 0, to = 0;  // places of the order, same rank
    Node kept = kNoNode;           // a backward that shall recompute no more
    std::uint32_t word = 0;        // chance, for what recomputes instead
  };

  [[nodiscard]] std::size_t ranks() const { return static_cast<std::size_t>(job_.ranks()); }
  void evaluate_start() {
    evaluator_.reset(order_);
    best_value_ = evaluator_.objective();
  }
  [[nodiscard]] std::size_t last_place() const;
  void find_critical_path(std::uint32_t word);
  [[nodiscard]] Move propose(const Draw& draw) const;
  [[nodiscard]] bool sensible(const Move& move) const;
  [[nodiscard]] Move propose_choice(const Draw& draw) const;
  void shift(std::size_t from, std::size_t to);
  [[nodiscard]] bool within_memory(std::size_t rank) const;
  [[nodiscard]] bool make_room(std::size_t rank, const Move& move);
  bool attempt(const Move& move, double threshold);
  void keep_best();

  const Job& job_;
  UnitChoice* choice_;
  LocalSearchOptions options_;
  Evaluator evaluator_;
  JobOrder order_, best_;
  double best_value_ = 0, typical_ticks_ = 0;
  std::vector<std::size_t> place_;  // by node
  std::vector<Node> critical_;      // actions that their rank's previous action holds up
  std::vector<Node> changed_;       // backwards with another choice than in the best order
};

/// Where the action stands that the objective ends with.
std::size_t LocalSearch::last_place() const {
  if (options_.objective == Objective::Span)
    return evaluator_.end_of_rank(evaluator_.deciding_rank()).at;
  std::size_t place = order_.size();
  double worst = -1;
  for (std::size_t r = 0; r < ranks(); ++r) {
    if (job_.first(r) == job_.first(r + 1)) continue;
    const RankEnd& last = evaluator_.end_of_rank(r);
    if (last.time > worst) place = last.at;
    worst = std::max(worst, last.time);
  }
  return place;
}

/// Follows from the last action back what each one waited for; for the span on from the start of
/// a rank to its last action of the step before, until the ranks repeat.
void LocalSearch::find_critical_path(std::uint32_t word) {
  critical_.clear();
  std::vector<bool> wrapped(ranks(), options_.objective == Objective::Makespan);
  std::size_t node_place = last_place();
  while (node_place < order_.size()) {
    const Node node = order_[node_place];
    const std::size_t rank = job_.rank(node);
    const bool first = node_place == job_.first(rank);
    double latest = first ? evaluator_.start_of_rank(rank) : evaluator_.end(order_[node_place - 1]);
    Node before = first ? kNoNode : order_[node_place - 1];
    bool by_rank = !first;
    for (const Node producer : job_.producers(node)) {
      const double arrival = evaluator_.end(producer) + job_.delay(producer, node);
      if (arrival < latest || (arrival == latest && (word & 1U) == 0)) continue;
      latest = arrival;
      before = producer;
      by_rank = before == (first ? kNoNode : order_[node_place - 1]);
    }
    if (by_rank) critical_.push_back(node);
    if (before == kNoNode && !wrapped[rank]) {
      wrapped[rank] = true;
      node_place = evaluator_.end_of_rank(rank).at;
    } else {
      node_place = before == kNoNode ? order_.size() : place_[before];
    }
  }
}

/// One of: swap a critical action with the one before it, take it further ahead, put the one before
/// it further back, or take a backward-weight before it to a place after it.
LocalSearch::Move LocalSearch::propose(const Draw& draw) const {
  const Node node = critical_[below(draw[0], critical_.size())];
  const std::size_t at = place_[node];
  const std::size_t first = job_.first(job_.rank(node));
  const std::size_t last = job_.first(job_.rank(node) + 1) - 1;
  const std::size_t reach = 1 + below(draw[2], std::size_t{4} * ranks());
  switch (below(draw[1], 4)) {
    case 0:
      return {at, at - 1};
    case 1:
      return {at, at - std::min(reach, at - first)};
    case 2:
      return {at - 1, std::min(last, at - 1 + reach)};
    default:
      break;
  }
  for (std::size_t i = at; i-- > first && at - i <= 4 * ranks();)
    if (job_.action(order_[i]).op == Op::BackwardWeight)
      return {i, std::min(last, at + below(draw[2], ranks()))};
  return {at, at - 1};
}

/// Whether the move changes anything that matters: not past its own producer or consumer, not only
/// past its own class.
bool LocalSearch::sensible(const Move& move) const {
  if (move.from == move.to) return false;
  const Node node = order_[move.from];
  const Action& action = job_.action(node);
  const auto [low, high] = std::minmax(move.from, move.to);
  for (const Node other : job_.producers(node))
    if (move.to < move.from && job_.rank(other) == job_.rank(node) && place_[other] >= low)
      return false;
  for (const Node other : job_.consumers(node))
    if (move.to > move.from && job_.rank(other) == job_.rank(node) && place_[other] <= high)
      return false;
  for (std::size_t at = low; at <= high; ++at) {
    const Action& other = job_.action(order_[at]);
    if (at != move.from && other.op == action.op && other.stage == action.stage &&
        other.replica_number == action.replica_number)
      return false;
  }
  return true;
}

/// A critical backward, or the next one of the path that recomputes, shall recompute no more.
LocalSearch::Move LocalSearch::propose_choice(const Draw& draw) const {
  const std::size_t drawn = below(draw[0], critical_.size());
  for (std::size_t i = 0; i < critical_.size(); ++i) {
    const Node node = critical_[(drawn + i) % critical_.size()];
    if (job_.recomputes(node)) return {place_[node], place_[node], node};
  }
  return {};
}

void LocalSearch::shift(std::size_t from, std::size_t to) {
  const auto place = [&](std::size_t at) {
    return order_.begin() + static_cast<std::ptrdiff_t>(at);
  };
  if (from < to) {
    std::rotate(place(from), place(from) + 1, place(to) + 1);
  } else {
    std::rotate(place(to), place(from), place(from) + 1);
  }
  for (std::size_t at = std::min(from, to); at <= std::max(from, to); ++at) place_[order_[at]] = at;
}

bool LocalSearch::within_memory(std::size_t rank) const {
  return options_.memory_limit == std::numeric_limits<double>::infinity() ||
         within_limit(job_.peak(order_, rank), options_.memory_limit);
}

/// Where the rank's memory is short, others recompute: mostly those with the longest idle time
/// before them and, of equals, the last one; now and then the last one, or any.
bool LocalSearch::make_room(std::size_t rank, const Move& move) {
  if (choice_ == nullptr) return within_memory(rank);
  const auto price = [&](Node backward) {
    const double last = static_cast<double>(order_.size() - place_[backward]);
    if (move.word % 4 == 0) return last;
    if (move.word % 4 == 1) return static_cast<double>(std::size_t{backward} * move.word % 1009);
    const double idle = evaluator_.idle_before(order_, place_[backward]);
    return last - static_cast<double>(order_.size()) * idle;
  };
  return choice_->make_room(order_, rank, options_.memory_limit, price, move.kept);
}

bool LocalSearch::attempt(const Move& move, double threshold) {
  const std::size_t rank = job_.rank(order_[move.from]);
  shift(move.from, move.to);
  if (move.kept != kNoNode) choice_->choose(move.kept, false);
  if (make_room(rank, move)) {
    std::size_t first = std::min(move.from, move.to);
    if (choice_ != nullptr)
      for (const Node node : choice_->open()) first = std::min(first, place_[node]);
    if (evaluator_.try_order(order_, rank, first, threshold) <= threshold) {
      evaluator_.keep(order_);
      if (choice_ != nullptr) {
        changed_.insert(changed_.end(), choice_->open().begin(), choice_->open().end());
        choice_->settle();
      }
      return true;
    }
  }
  if (choice_ != nullptr) choice_->undo();
  shift(move.to, move.from);
  return false;
}

void LocalSearch::keep_best() {
  best_value_ = evaluator_.objective();
  best_ = order_;
  changed_.clear();
}

void LocalSearch::choose_best() {
  choice_->undo();
  for (const Node node : changed_) choice_->choose(node, !job_.recomputes(node));
  choice_->settle();
  changed_.clear();
}

void LocalSearch::run(std::int64_t& evaluations) {
  const RandomKey key{.seed = options_.seed,
                      .purpose = Purpose::Search,
                      .step = 0,
                      .sample = 0,
                      .layer = options_.stream};
  find_critical_path(0);
  for (std::int64_t i = 0; i < options_.evaluations; ++i) {
    if (critical_.empty() || best_value_ <= options_.goal) break;
    job_.spend(1);
    const Draw draw = random_block(key, static_cast<std::uint32_t>(i));
    ++evaluations;
    const bool choose = choice_ != nullptr && draw[1] % 3 == 0;
    Move move = choose ? propose_choice(draw) : propose(draw);
    move.word = draw[2];
    if (move.kept == kNoNode && !sensible(move)) continue;
    const double share = static_cast<double>(i) / static_cast<double>(options_.evaluations);
    const double slack = 0.5 * typical_ticks_ * std::max(0.0, 0.8 - share);
    const double threshold = std::min(evaluator_.objective(), best_value_ + slack) + slack * 0.25;
    if (!attempt(move, threshold)) continue;
    if (evaluator_.objective() < best_value_) keep_best();
    find_critical_path(draw[3]);
  }
}

void run_until_stopped(LocalSearch& search, std::int64_t& evaluations) {
  try {
    search.run(evaluations);
  } catch (const Stopped&) {
    // The caller asks again.
  }
}

}  // namespace

JobOrder local_search(const Job& job,
                      JobOrder order,
                      const LocalSearchOptions& options,
                      std::int64_t& evaluations) {
  LocalSearch search(job, std::move(order), options);
  run_until_stopped(search, evaluations);
  return search.best();
}

JobOrder local_search(UnitChoice& choice,
                      JobOrder order,
                      const LocalSearchOptions& options,
                      std::int64_t& evaluations) {
  LocalSearch search(choice.job(), std::move(order), options, &choice);
  run_until_stopped(search, evaluations);
  search.choose_best();
  return search.best();
}

}  // namespace millrace::plan
