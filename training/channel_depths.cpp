// How full channels can get, whatever the timing: vector clocks over one run of the lists. A
// message counts as received, or a tensor as no longer used, only if the sender knows so through
// the messages it has got itself.
#include "training/channel_depths.hpp"

#include <algorithm>
#include <map>
#include <tuple>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/passes.hpp"
#include "millrace/training/ranks.hpp"

namespace millrace {

namespace {

using detail::TensorSizes;

/// What is counted: tensors of a channel by their bytes, or its messages, which have none.
using Counted = std::tuple<Rank, Rank, Direction, std::size_t>;
using Most = std::map<Counted, int>;
/// A vector clock: by rank, how many of its actions have certainly ended.
using Known = std::vector<std::size_t>;

/// What a rank that gets a message learns of.
enum class Learns : bool {
  Everybody,  ///< what the sender knew of every rank
  Sender      ///< the sender's own progress
};

/// Counts messages until they are received, or their tensors until the unit's last pass at the
/// stage that got them.
struct Counting {
  Learns learns = Learns::Everybody;
  const TensorSizes* sizes = nullptr;  ///< null: messages
  std::size_t passes = 1;              ///< runs of all lists, one behind the other
};

/// Runs all lists, in any order in which every receive finds its message.
class Run {
 public:
  Run(const Program& program, const Counting& counting, Most& most)
      : program_(program),
        graph_(program.shape),
        counting_(counting),
        most_(most),
        known_(program.ranks.size(), Known(program.ranks.size(), 0)) {
    for (std::size_t i = 0; i < program_.ranks.size(); ++i) index_ends(i);
    for (auto& [counted, places] : ends_) std::ranges::sort(places);
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t i = 0; i < program_.ranks.size(); ++i)
        while (advance(i)) moved = true;
    }
    for (std::size_t i = 0; i < program_.ranks.size(); ++i)
      require(known_[i][i] == length(i),
              "rank " + std::to_string(i) + " never ends: the program deadlocks");
  }

 private:
  using Place = std::tuple<Replica, Stage, MicroBatch, Slice>;

  [[nodiscard]] std::size_t length(std::size_t rank) const {
    return program_.ranks[rank].size() * counting_.passes;
  }

  [[nodiscard]] Message message(const Action& action, std::size_t pass) const {
    return message_of(program_.shape, graph_, action, pass);
  }

  static Place place_of(const Action& action) {
    return {action.replica(), action.stage, action.micro_batch, action.slice};
  }

  template <class Use>
  void for_each_counted(const Message& message, const Use& use) const {
    if (counting_.sizes == nullptr)
      return use(Counted{message.source, message.destination, message.direction, 0});
    for (const std::size_t bytes : counting_.sizes->of(message))
      use(Counted{message.source, message.destination, message.direction, bytes});
  }

  /// With which action of its receiver a message no longer counts.
  void index_ends(std::size_t rank) {
    const auto& list = program_.ranks[rank];
    std::map<Place, std::size_t> last;
    for (std::size_t i = 0; i < list.size(); ++i)
      if (is_compute(list[i].op)) last[place_of(list[i])] = i;
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (!is_receive(list[i].op)) continue;
      const std::size_t end = counting_.sizes == nullptr ? i : last.at(place_of(list[i]));
      for (std::size_t pass = 0; pass < counting_.passes; ++pass)
        for_each_counted(message(list[i], pass), [&](const Counted& counted) {
          ends_[counted].push_back(pass * list.size() + end);
        });
    }
  }

  bool advance(std::size_t rank) {
    Known& mine = known_[rank];
    if (mine[rank] == length(rank)) return false;
    const auto& list = program_.ranks[rank];
    const Action& action = list[mine[rank] % list.size()];
    const std::size_t pass = mine[rank] / list.size();
    if (is_receive(action.op)) {
      const auto sent = under_way_.find(message(action, pass));
      if (sent == under_way_.end()) return false;
      const std::size_t sender = sent->first.source.index();
      for (std::size_t i = 0; i < mine.size(); ++i)
        if (counting_.learns == Learns::Everybody || i == sender)
          mine[i] = std::max(mine[i], sent->second[i]);
      under_way_.erase(sent);
    }
    if (is_send(action.op)) send(rank, message(action, pass));
    ++mine[rank];
    return true;
  }

  void send(std::size_t rank, const Message& message) {
    const std::size_t ended = known_[rank][message.destination.index()];
    for_each_counted(message, [&](const Counted& counted) {
      const std::vector<std::size_t>& places = ends_[counted];
      const auto gone = std::ranges::lower_bound(places, ended) - places.begin();
      int& most = most_[counted];
      most = std::max(most, ++sent_[counted] - static_cast<int>(gone));
    });
    under_way_.emplace(message, known_[rank]);
  }

  const Program& program_;
  const StageGraph graph_;
  const Counting counting_;
  Most& most_;
  std::vector<Known> known_;
  std::map<Counted, std::vector<std::size_t>> ends_;  // positions in the receiver's list
  std::map<Counted, int> sent_;
  std::map<Message, Known> under_way_;
};

/// In training and in evaluation.
Most most_of(const Program& program, const Counting& counting) {
  Most most;
  static_cast<void>(Run(receive_before_use(insert_messages_before_use(program)), counting, most));
  Counting once = counting;
  once.passes = 1;
  static_cast<void>(Run(insert_messages_before_use(forward_program(program.shape)), once, most));
  return most;
}

}  // namespace

std::vector<ChannelDepth> channel_depths(const Program& program) {
  const Most depths = most_of(program, {.learns = Learns::Everybody});
  const Most from_each_other = most_of(program, {.learns = Learns::Sender});
  std::vector<ChannelDepth> list;
  for (const auto& [counted, depth] : depths)
    list.push_back({std::get<0>(counted),
                    std::get<1>(counted),
                    std::get<2>(counted),
                    depth,
                    from_each_other.at(counted) == depth});
  return list;
}

namespace detail {

TensorSizes::TensorSizes(const ModelSpec& model,
                         std::span<const int> boundaries,
                         const Shape& shape,
                         const UnitSize& unit) {
  const auto inputs = stage_inputs(model, boundaries);
  const StageGraph graph(shape);
  const auto note = [&](const StageLink& link, const TensorType& type) {
    const std::size_t bytes = bytes_of(type, unit);
    sizes_[{Direction::Forward, link.to, link.entering}].push_back(bytes);
    if (type.has_gradient) sizes_[{Direction::Backward, link.from, link.leaving}].push_back(bytes);
  };
  for (int stage = 1; stage < shape.stages(); ++stage)
    graph.for_each_entering(Stage{stage}, [&](const StageLink& link) {
      const auto& types = inputs[link.to.index()];
      if (graph.is_chain())
        for (const TensorType& type : types) note(link, type);
      for (const StageEdge& edge : graph.edges(link))
        note(link, types.at(static_cast<std::size_t>(edge.input)));
    });
}

const std::vector<std::size_t>& TensorSizes::of(const Message& message) const {
  static const std::vector<std::size_t> none;
  const auto found = sizes_.find({message.direction, message.stage, message.edge});
  return found == sizes_.end() ? none : found->second;
}

std::vector<ChannelDepth> depths_with_tensors(const Program& program,
                                              const TensorSizes& sizes,
                                              int passes) {
  std::vector<ChannelDepth> list = channel_depths(program);
  // A pass meets what the one before it has left, and no older one.
  const auto runs = static_cast<std::size_t>(std::min(passes, 2));
  for (const auto& [counted, most] : most_of(program, {.sizes = &sizes, .passes = runs})) {
    const auto& [source, destination, direction, bytes] = counted;
    for (ChannelDepth& channel : list)
      if (channel.source == source && channel.destination == destination &&
          channel.direction == direction && bytes > 0)
        channel.tensors.push_back({bytes, most});
  }
  return list;
}

}  // namespace detail

std::vector<ChannelDepth> on_grid(const std::vector<ChannelDepth>& of_one_copy, const Grid& grid) {
  std::vector<ChannelDepth> list;
  for (int copy = 0; copy < grid.data(); ++copy)
    for (ChannelDepth channel : of_one_copy) {
      channel.source = grid.process(copy, channel.source);
      channel.destination = grid.process(copy, channel.destination);
      list.push_back(channel);
    }
  return list;
}

}  // namespace millrace
