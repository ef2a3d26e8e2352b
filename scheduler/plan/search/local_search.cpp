// Threshold accepting over critical-path moves. A move takes one action to another place of its
// rank, or ends the recompute of a critical backward; where memory is then short, others recompute.
// The orders it yields are timed incrementally and given up once they exceed the threshold.
#include "plan/search/local_search.hpp"

#include <algorithm>
#include <array>
#include <numeric>

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
        place_(job.size()) {
    evaluator_.reset(order_, job.own_pairs());
    note_best();
    for (std::size_t at = 0; at < order_.size(); ++at) place_[order_[at]] = at;
    double work = 0;
    for (std::size_t r = 0; r < ranks(); ++r) work += job.work(r);
    typical_ticks_ =
        job.passes() * work / static_cast<double>(std::max<std::size_t>(1, job.size()));
  }

  void run(std::int64_t& evaluations);
  [[nodiscard]] PairedOrder best() const { return best_; }
  /// Makes the choice of recompute the best order's.
  void choose_best();

 private:
  /// Places [first, middle) of a rank change places with [middle, last); then the action `drops`
  /// runs with the next one as a pair no more, and `leads` does.
  struct Move {
    std::size_t first = 0, middle = 0, last = 0;
    Node leads = kNoNode, drops = kNoNode;
    Node kept = kNoNode;     // a backward that shall recompute no more
    std::uint32_t word = 0;  // chance, for what recomputes instead
  };

  [[nodiscard]] std::size_t ranks() const { return static_cast<std::size_t>(job_.ranks()); }
  /// Choices of recompute are made for orders without pairs.
  [[nodiscard]] bool pairs() const { return job_.has_pairs() && choice_ == nullptr; }
  void note_best() {
    best_ = {order_, evaluator_.pairs()};
    best_value_ = evaluator_.objective();
    changed_.clear();
  }
  [[nodiscard]] std::size_t last_place() const;
  void find_critical_path(std::uint32_t word);
  [[nodiscard]] Move propose(const Draw& draw) const;
  [[nodiscard]] Move moved(std::size_t from, std::size_t to) const;
  [[nodiscard]] Move paired(const Draw& draw, std::size_t reach) const;
  [[nodiscard]] bool can_pair(std::size_t one, std::size_t other) const;
  [[nodiscard]] bool sensible(const Move& move) const;
  [[nodiscard]] Move propose_choice(const Draw& draw) const;
  [[nodiscard]] bool may_pass(Node node, std::size_t first, std::size_t last, bool later) const;
  void turn(std::size_t first, std::size_t middle, std::size_t last);
  void set_pairs(Node leads, Node drops);
  [[nodiscard]] bool make_room(std::size_t rank, const Move& move);
  void pair_up(std::int64_t& evaluations);
  bool attempt(const Move& move, double threshold);

  const Job& job_;
  UnitChoice* choice_;
  LocalSearchOptions options_;
  Evaluator evaluator_;
  JobOrder order_;
  PairedOrder best_;
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
    node_place = evaluator_.head(order_, node_place);
    const Node node = order_[node_place];
    const std::size_t rank = job_.rank(node);
    const bool first = node_place == job_.first(rank);
    double latest = first ? evaluator_.start_of_rank(rank) : evaluator_.end(order_[node_place - 1]);
    Node before = first ? kNoNode : order_[node_place - 1];
    bool by_rank = !first;
    for (std::size_t half = node_place; half <= evaluator_.tail(order_, node_place); ++half)
      for (const Node producer : job_.producers(order_[half])) {
        const double arrival = evaluator_.end(producer) + job_.delay(producer, order_[half]);
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
/// it further back, or take a backward-weight before it to a place after it; with pairs also: run
/// it at once with an earlier or a later action, or apart from the one that it runs with.
LocalSearch::Move LocalSearch::propose(const Draw& draw) const {
  const Node node = critical_[below(draw[0], critical_.size())];
  const std::size_t at = place_[node];
  const std::size_t first = job_.first(job_.rank(node));
  const std::size_t last = job_.first(job_.rank(node) + 1) - 1;
  const std::size_t reach = 1 + below(draw[2], std::size_t{4} * ranks());
  switch (below(draw[1], pairs() ? 8 : 4)) {
    case 0:
      return moved(at, at - 1);
    case 1:
      return moved(at, at - std::min(reach, at - first));
    case 2:
      return moved(at - 1, std::min(last, at - 1 + reach));
    case 3:
      break;
    default:
      return paired(draw, reach);
  }
  for (std::size_t i = at; i-- > first && at - i <= 4 * ranks();)
    if (job_.action(order_[i]).op == Op::BackwardWeight)
      return moved(i, std::min(last, at + below(draw[2], ranks())));
  return moved(at, at - 1);
}

/// Takes an action, or its pair, past the one at `to`, or past its pair.
LocalSearch::Move LocalSearch::moved(std::size_t from, std::size_t to) const {
  const auto head = [this](std::size_t at) { return evaluator_.head(order_, at); };
  const auto end = [&](std::size_t at) { return evaluator_.tail(order_, head(at)) + 1; };
  if (head(from) == head(to)) return {};
  return from < to ? Move{head(from), end(from), end(to)} : Move{head(to), head(from), end(from)};
}

/// Whether `other` is in no pair and can run at once with the action at `one`.
bool LocalSearch::can_pair(std::size_t one, std::size_t other) const {
  const Node a = order_[one], b = order_[other];
  return evaluator_.head(order_, other) == evaluator_.tail(order_, other) &&
         job_.pair_ticks(a, b) >= 0 && job_.action(a).micro_batch != job_.action(b).micro_batch;
}

/// Lets a critical action run at once with the nearest earlier or later one that can, where either
/// of them stands, and no more with the one that it runs with; or only the latter.
LocalSearch::Move LocalSearch::paired(const Draw& draw, std::size_t reach) const {
  const auto coin = [&](std::uint32_t bit) { return (draw[3] >> bit & 1U) != 0; };
  std::size_t at = evaluator_.head(order_, place_[critical_[below(draw[0], critical_.size())]]);
  const Node partner = evaluator_.leads(order_[at]) ? order_[at] : kNoNode;
  const Move split{at, at, at, kNoNode, partner};
  if (partner != kNoNode && coin(1)) return split;
  if (coin(2)) at = evaluator_.tail(order_, at);
  const std::size_t rank = job_.rank(order_[at]);
  for (std::size_t i = 1; i <= reach; ++i) {
    if (coin(3) ? at + i >= job_.first(rank + 1) : at < job_.first(rank) + i) break;
    const std::size_t other = coin(3) ? at + i : at - i;
    if (!can_pair(at, other)) continue;
    const auto [early, late] = std::minmax(at, other);
    return coin(4) ? Move{early, early + 1, late, order_[early], partner}
                   : Move{early + 1, late, late + 1, order_[early], partner};
  }
  return split;
}

/// Whether nothing in places [first, last) gives the node its input (is given its output, where it
/// moves to a later place), nor is of its own class.
bool LocalSearch::may_pass(Node node, std::size_t first, std::size_t last, bool later) const {
  const Action& action = job_.action(node);
  for (const Node other : later ? job_.consumers(node) : job_.producers(node))
    if (job_.rank(other) == job_.rank(node) && place_[other] >= first && place_[other] < last)
      return false;
  for (std::size_t at = first; at < last; ++at) {
    const Action& other = job_.action(order_[at]);
    if (other.op == action.op && other.stage == action.stage &&
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
    const std::size_t at = place_[node];
    if (job_.recomputes(node)) return {.first = at, .middle = at, .last = at, .kept = node};
  }
  return {};
}

/// Whether the move changes anything that matters. The shorter of the two parts is what moves.
bool LocalSearch::sensible(const Move& move) const {
  const auto& [first, middle, last, leads, drops, kept, word] = move;
  if (first == last) return leads != drops || kept != kNoNode;
  const bool later = middle - first <= last - middle;
  for (std::size_t at = later ? first : middle; at < (later ? middle : last); ++at)
    if (!may_pass(order_[at], later ? middle : first, later ? last : middle, later)) return false;
  return true;
}

/// Places [first, middle) change places with [middle, last).
void LocalSearch::turn(std::size_t first, std::size_t middle, std::size_t last) {
  const auto place = [this](std::size_t at) {
    return order_.begin() + static_cast<std::ptrdiff_t>(at);
  };
  std::rotate(place(first), place(middle), place(last));
  for (std::size_t at = first; at < last; ++at) place_[order_[at]] = at;
}

void LocalSearch::set_pairs(Node leads, Node drops) {
  if (drops != kNoNode) evaluator_.set_pair(drops, false);
  if (leads != kNoNode) evaluator_.set_pair(leads, true);
}

/// Where the rank's memory is short, others recompute: mostly those with the longest idle time
/// before them and, of equals, the last one; now and then the last one, or any.
bool LocalSearch::make_room(std::size_t rank, const Move& move) {
  if (choice_ == nullptr)
    return options_.memory_limit == std::numeric_limits<double>::infinity() ||
           within_limit(evaluator_.peak(order_, rank), options_.memory_limit);
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
  std::size_t from = move.first;
  for (const Node node : {move.leads, move.drops})
    if (node != kNoNode) from = std::min(from, place_[node]);
  const std::size_t rank = job_.rank(order_[from]);
  turn(move.first, move.middle, move.last);
  set_pairs(move.leads, move.drops);
  if (move.kept != kNoNode) choice_->choose(move.kept, false);
  if (make_room(rank, move)) {
    if (choice_ != nullptr)
      for (const Node node : choice_->open()) from = std::min(from, place_[node]);
    if (evaluator_.try_order(order_, rank, from, threshold) <= threshold) {
      evaluator_.keep(order_);
      if (choice_ != nullptr) {
        changed_.insert(changed_.end(), choice_->open().begin(), choice_->open().end());
        choice_->settle();
      }
      return true;
    }
  }
  if (choice_ != nullptr) choice_->undo();
  turn(move.first, move.first + (move.last - move.middle), move.last);
  set_pairs(move.drops, move.leads);
  return false;
}

void LocalSearch::choose_best() {
  choice_->undo();
  for (const Node node : changed_) choice_->choose(node, !job_.recomputes(node));
  choice_->settle();
  changed_.clear();
}

/// Lets neighbours run at once, the earliest first, where that does no harm.
void LocalSearch::pair_up(std::int64_t& evaluations) {
  std::vector<std::size_t> places(order_.size());
  std::iota(places.begin(), places.end(), std::size_t{0});
  std::ranges::stable_sort(
      places, {}, [this](std::size_t at) { return evaluator_.end(order_[at]); });
  const std::int64_t most = evaluations + options_.evaluations / 2;
  for (const std::size_t at : places) {
    if (evaluations >= most) break;
    const bool is_last = at + 1 == job_.first(job_.rank(order_[at]) + 1);
    if (is_last || !can_pair(at, at + 1) || !can_pair(at + 1, at)) continue;
    job_.spend(1);
    ++evaluations;
    attempt({at, at, at, order_[at]}, evaluator_.objective());
  }
  note_best();
}

void LocalSearch::run(std::int64_t& evaluations) {
  const RandomKey key{.seed = options_.seed,
                      .purpose = Purpose::Search,
                      .step = 0,
                      .sample = 0,
                      .layer = options_.stream};
  if (pairs()) pair_up(evaluations);
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
    if (evaluator_.objective() < best_value_) note_best();
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

PairedOrder local_search(const Job& job,
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
  return search.best().order;
}

}  // namespace millrace::plan
