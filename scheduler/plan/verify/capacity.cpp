// Channel capacities: the sufficient one is read off a run in which nothing waits for room, the
// minimal one is searched: first one bound for all, then channel by channel.
#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/passes.hpp"
#include "plan/simulate/clock.hpp"
#include "plan/verify/channels.hpp"

namespace millrace {

namespace {

/// Throws InvalidArgument unless every send has its receive.
std::vector<plan::Channel> whole_channels(const Graph& graph) {
  auto channels = plan::channels(graph);
  for (const plan::Channel& channel : channels) {
    bool whole = channel.sends.size() == channel.receives.size();
    for (const Node receive : channel.receives) whole = whole && !graph.producers(receive).empty();
    require(whole,
            "rank " + std::to_string(channel.source.value) + " sends " +
                std::to_string(channel.sends.size()) + " messages to rank " +
                std::to_string(channel.destination.value) + ", which has " +
                std::to_string(channel.receives.size()) + " receives; each send needs its own");
  }
  return channels;
}

/// Most messages in one channel at a time. A receive makes room only for sends strictly later, so
/// that the run stays possible with exactly this room. A receive that is not written out ends when
/// its user starts.
int most_in_channel(const Graph& graph, const Timeline& run, const plan::Channel& channel) {
  const auto interval = [&](Rank rank, Node node) {
    return run.ranks[rank.index()][node - graph.first(rank)];
  };
  const auto end = [&](Rank rank, Node node) { return interval(rank, node).end; };
  const auto taken = [&](Node receive) {
    const Interval of = interval(channel.destination, receive);
    return channel.written ? of.end : of.start;
  };
  std::size_t received = 0;
  std::size_t most = 1;
  for (std::size_t sent = 0; sent < channel.sends.size(); ++sent) {
    const double now = end(channel.source, channel.sends[sent]);
    while (received < channel.receives.size() && taken(channel.receives[received]) < now)
      ++received;
    if (sent + 1 > received) most = std::max(most, sent + 1 - received);
  }
  return static_cast<int>(most);
}

/// Lowest value of [low, high] that works; `high` is known to.
template <class Works>
int lowest(int low, int high, Works&& works) {
  while (low < high) {
    const int middle = low + (high - low) / 2;
    if (works(middle))
      high = middle;
    else
      low = middle + 1;
  }
  return low;
}

bool terminates(const Graph& graph,
                const std::vector<plan::Channel>& channels,
                const std::vector<int>& depth) {
  return plan::finished(graph,
                        plan::where_ranks_stand(plan::bounded_waits(graph, channels, depth)));
}

/// Searches the depths. Every question is one replay of the graph.
class MinimalDepths {
 public:
  MinimalDepths(const Graph& graph,
                const std::vector<plan::Channel>& channels,
                const std::vector<int>& sufficient)
      : graph_(graph), channels_(channels), sufficient_(sufficient) {}

  std::vector<int> search() {
    const int most = *std::max_element(sufficient_.begin(), sufficient_.end());
    const int common = lowest(1, most, [&](int depth) {
      capped(depth);
      return terminates();
    });
    capped(common);
    for (std::size_t c = 0; c < depth_.size(); ++c) {
      const int now = depth_[c];
      depth_[c] = lowest(1, now, [&](int depth) {
        depth_[c] = depth;
        return terminates();
      });
    }
    return depth_;
  }

 private:
  void capped(int depth) {
    depth_ = sufficient_;
    for (int& each : depth_) each = std::min(each, depth);
  }

  [[nodiscard]] bool terminates() const { return millrace::terminates(graph_, channels_, depth_); }

  const Graph& graph_;
  const std::vector<plan::Channel>& channels_;
  const std::vector<int>& sufficient_;
  std::vector<int> depth_;
};

}  // namespace

std::vector<ChannelCapacity> channel_capacities(const Program& program) {
  const Graph graph(program);
  return channel_capacities(graph);
}

std::vector<ChannelCapacity> channel_capacities(const Graph& graph) {
  const Program& program = graph.program();
  auto unwritten = plan::unwritten_channels(graph);
  if (!unwritten && !graph.has_messages()) {
    const Program lowered = insert_messages_before_use(program);
    if (has_messages(lowered)) return channel_capacities(lowered);
    return {};
  }
  if (unwritten && unwritten->empty()) return {};
  const Cost cost = Cost::unit(program.shape);
  plan::Clock clock(graph, cost, {.stands_in_receives = true});
  if (!clock.run()) return {};
  std::optional<Timeline> run = clock.take();
  const auto all = unwritten ? std::move(*unwritten) : whole_channels(graph);
  std::vector<int> sufficient;
  for (const plan::Channel& channel : all)
    sufficient.push_back(most_in_channel(graph, *run, channel));
  run.reset();  // as large as the program: the replays below need room too
  const auto minimal = MinimalDepths(graph, all, sufficient).search();
  std::vector<ChannelCapacity> result;
  for (std::size_t c = 0; c < all.size(); ++c)
    result.push_back(
        {all[c].source, all[c].destination, all[c].direction, minimal[c], sufficient[c]});
  return result;
}

std::optional<int> uniform_capacity(const Program& program) {
  const Program lowered = insert_messages_before_use(program);
  const Graph graph(lowered);
  const auto all = whole_channels(graph);
  std::size_t most = 1;
  for (const plan::Channel& channel : all) most = std::max(most, channel.sends.size());
  const auto works = [&](int depth) {
    return terminates(graph, all, std::vector<int>(all.size(), depth));
  };
  if (!works(static_cast<int>(most))) return std::nullopt;
  return lowest(1, static_cast<int>(most), works);
}

}  // namespace millrace
