// How full channels can get, whatever the timing: vector clocks over one run of the lists. A
// message counts as received only if the sender knows so through the messages it has got itself.
#include <algorithm>
#include <map>
#include <tuple>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/passes.hpp"
#include "millrace/scheduler/plan/stage_graph.hpp"
#include "millrace/training/rank_parts.hpp"

namespace millrace {

namespace {

using ChannelName = std::tuple<Rank, Rank, Direction>;
using Depths = std::map<ChannelName, int>;
/// A vector clock: by rank, how many of its actions have certainly ended.
using Known = std::vector<std::size_t>;

/// What a rank that gets a message learns of.
enum class Learns : bool {
  Everybody,  ///< what the sender knew of every rank
  Sender      ///< the sender's own progress
};

/// Runs all lists once, in any order in which every receive finds its message.
class Run {
 public:
  Run(const Program& program, Learns learns, Depths& depths)
      : program_(program),
        graph_(program.shape),
        learns_(learns),
        depths_(depths),
        known_(program.ranks.size(), Known(program.ranks.size(), 0)) {
    for (std::size_t i = 0; i < program_.ranks.size(); ++i) index_receives(i);
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t i = 0; i < program_.ranks.size(); ++i)
        while (advance(i)) moved = true;
    }
    for (std::size_t i = 0; i < program_.ranks.size(); ++i)
      require(known_[i][i] == program_.ranks[i].size(),
              "rank " + std::to_string(i) + " never ends: the program deadlocks");
  }

 private:
  [[nodiscard]] Message message(const Action& action) const {
    return message_of(program_.shape, graph_, action, 0);
  }

  static ChannelName channel_of(const Message& message) {
    return {message.source, message.destination, message.direction};
  }

  void index_receives(std::size_t rank) {
    for (std::size_t i = 0; i < program_.ranks[rank].size(); ++i)
      if (is_receive(program_.ranks[rank][i].op))
        receives_[channel_of(message(program_.ranks[rank][i]))].push_back(i);
  }

  bool advance(std::size_t rank) {
    Known& mine = known_[rank];
    if (mine[rank] == program_.ranks[rank].size()) return false;
    const Action& action = program_.ranks[rank][mine[rank]];
    if (is_receive(action.op)) {
      const auto sent = under_way_.find(message(action));
      if (sent == under_way_.end()) return false;
      const std::size_t sender = sent->first.source.index();
      for (std::size_t i = 0; i < mine.size(); ++i)
        if (learns_ == Learns::Everybody || i == sender)
          mine[i] = std::max(mine[i], sent->second[i]);
      under_way_.erase(sent);
    }
    if (is_send(action.op)) send(rank, message(action));
    ++mine[rank];
    return true;
  }

  void send(std::size_t rank, const Message& message) {
    const ChannelName channel = channel_of(message);
    const std::vector<std::size_t>& places = receives_[channel];
    const std::size_t ended = known_[rank][message.destination.index()];
    const auto received = std::lower_bound(places.begin(), places.end(), ended) - places.begin();
    const int waiting = ++sent_[channel] - static_cast<int>(received);
    depths_[channel] = std::max(depths_[channel], waiting);
    under_way_.emplace(message, known_[rank]);
  }

  const Program& program_;
  const StageGraph graph_;
  const Learns learns_;
  Depths& depths_;
  std::vector<Known> known_;
  std::map<ChannelName, std::vector<std::size_t>> receives_;  // positions in the receiver's list
  std::map<ChannelName, int> sent_;
  std::map<Message, Known> under_way_;
};

/// In training and in evaluation.
Depths depths_of(const Program& program, Learns learns) {
  Depths depths;
  static_cast<void>(Run(receive_before_use(insert_messages_before_use(program)), learns, depths));
  static_cast<void>(
      Run(insert_messages_before_use(forward_program(program.shape)), learns, depths));
  return depths;
}

}  // namespace

std::vector<ChannelDepth> channel_depths(const Program& program) {
  const Depths depths = depths_of(program, Learns::Everybody);
  const Depths from_each_other = depths_of(program, Learns::Sender);
  std::vector<ChannelDepth> list;
  for (const auto& [channel, depth] : depths)
    list.push_back({std::get<0>(channel),
                    std::get<1>(channel),
                    std::get<2>(channel),
                    depth,
                    from_each_other.at(channel) == depth});
  return list;
}

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
