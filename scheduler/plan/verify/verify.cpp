// The order of the checks: structure first, then order, then the transport, then memory.
#include "millrace/scheduler/plan/verify.hpp"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <string>

#include "plan/model/memory.hpp"
#include "plan/text/number_text.hpp"
#include "plan/verify/channels.hpp"
#include "plan/verify/structure.hpp"

namespace millrace {

namespace {

std::string channel_name(const plan::Channel& channel) {
  return "the channel of " +
         std::string(channel.direction == Direction::Forward ? "activations" : "gradients") +
         " from rank " + std::to_string(channel.source.value) + " to rank " +
         std::to_string(channel.destination.value);
}

/// Rules 5 to 9 on a program whose structure is right.
class OrderCheck {
 public:
  OrderCheck(const Graph& graph, const VerifyOptions& options) : options_(options), graph_(graph) {}

  std::vector<Violation> check() {
    if (graph_.has_wrong_lists()) own_lists();
    if (violations_.empty()) cycle({&graph_, {}, nullptr}, Rule::Order, "the order has a cycle: ");
    if (violations_.empty() && graph_.has_messages()) transport();
    if (violations_.empty() && options_.cost) memory();
    return violations_;
  }

 private:
  void report(Rule rule, Node node, std::string message) {
    violations_.push_back({rule, graph_.rank(node), graph_.position(node), std::move(message)});
  }

  void also(Node node) {
    violations_.back().others.push_back({graph_.rank(node), graph_.position(node)});
  }

  /// What waits for something later in its own list.
  void own_lists() {
    Node node = 0;
    const auto& lists = graph_.program().ranks;
    for (std::size_t r = 0; r < lists.size(); ++r) {
      const Node end = graph_.first(Rank{static_cast<std::int32_t>(r) + 1});
      for (; node < end; ++node)
        for (const Node producer : graph_.producers(node))
          if (producer >= node && producer < end) {
            report(Rule::Order,
                   node,
                   to_string(graph_.action(node)) + " comes before " +
                       to_string(graph_.action(producer)) + ", which it needs");
            also(producer);
          }
    }
  }

  /// Reports the shortest cycle, if there is one. Returns its nodes.
  std::vector<plan::Wait> cycle(const plan::Waits& waits, Rule rule, const std::string& opening) {
    const auto next = plan::where_ranks_stand(waits);
    if (plan::finished(graph_, next)) return {};
    auto found = plan::shortest_cycle(waits, next);
    report(rule, found.front().node, opening + plan::deadlock(graph_, found).message());
    for (std::size_t i = 1; i < found.size(); ++i) also(found[i].node);
    return found;
  }

  void transport() {
    const Transport& transport = options_.transport;
    if (!transport.ordered && transport.kind == Transport::Kind::Unbounded) return;
    const auto channels = plan::channels(graph_);
    if (transport.ordered) ordered(channels);
    if (transport.kind == Transport::Kind::Unbounded) return;
    const bool rendezvous =
        transport.kind == Transport::Kind::Rendezvous || transport.capacity <= 0;
    const std::string name =
        rendezvous ? "rendezvous" : "capacity " + std::to_string(transport.capacity);
    const int common = rendezvous ? 0 : transport.capacity;
    if (transport.channels.empty() || transport.kind == Transport::Kind::Rendezvous) {
      const std::vector<int> depth(channels.size(), common);
      cycle(plan::bounded_waits(graph_, channels, depth),
            Rule::Deadlock,
            "with " + name + " the program hangs: ");
      return;
    }
    declared(channels, common);
  }

  /// Rule 8: the declared depths are to blame when the program hangs with them.
  void declared(const std::vector<plan::Channel>& channels, int common) {
    std::vector<int> depth(channels.size(), common);
    for (std::size_t c = 0; c < channels.size(); ++c)
      for (const ChannelDepth& each : options_.transport.channels)
        if (each.source == channels[c].source && each.destination == channels[c].destination &&
            each.direction == channels[c].direction)
          depth[c] = each.depth;
    const auto found = cycle(plan::bounded_waits(graph_, channels, depth),
                             Rule::Capacity,
                             "the declared room is too small: ");
    for (const plan::Wait& wait : found) {
      if (!is_send(graph_.action(wait.node).op)) continue;
      const auto full = std::find_if(channels.begin(), channels.end(), [&](const auto& channel) {
        return std::binary_search(channel.sends.begin(), channel.sends.end(), wait.node);
      });
      const int room = depth[static_cast<std::size_t>(full - channels.begin())];
      violations_.back().message +=
          "; " + channel_name(*full) + " has room for " + std::to_string(room);
    }
  }

  /// Without keys, what a rank sends k-th to another is what that receives k-th from it.
  void ordered(std::vector<plan::Channel> channels) {
    for (std::size_t c = 0; c < channels.size(); ++c) {
      plan::Channel& channel = channels[c];
      if (c + 1 < channels.size() && channels[c + 1].source == channel.source &&
          channels[c + 1].destination == channel.destination) {
        merge(channel, channels[c + 1]);
        continue;
      }
      for (std::size_t k = 0; k < channel.receives.size(); ++k) {
        const Node send = graph_.producers(channel.receives[k]).front();
        if (send == channel.sends[k]) continue;
        report(
            Rule::Messages,
            channel.receives[k],
            fmt::format("{} receives message {} of rank {} to rank {}, which is {}; its own, {}, "
                        "is message {}",
                        to_string(graph_.action(channel.receives[k])),
                        k,
                        channel.source.value,
                        channel.destination.value,
                        to_string(graph_.action(channel.sends[k])),
                        to_string(graph_.action(send)),
                        std::ranges::find(channel.sends, send) - channel.sends.begin()));
        also(channel.sends[k]);
        break;
      }
    }
  }

  /// Moves the messages of one direction to those of the other, in the order of the lists.
  static void merge(plan::Channel& from, plan::Channel& into) {
    for (const auto ends : {&plan::Channel::sends, &plan::Channel::receives}) {
      auto& all = into.*ends;
      all.insert(all.end(), (from.*ends).begin(), (from.*ends).end());
      std::ranges::sort(all);
    }
  }

  void memory() {
    const Program& program = graph_.program();
    const Cost& cost = *options_.cost;
    cost.require_fits(program.shape);
    const std::vector<plan::MemoryPeak> peaks = plan::memory_peaks(program, cost);
    for (std::size_t r = 0; r < program.ranks.size(); ++r) {
      const plan::MemoryPeak& peak = peaks[r];
      const auto& limits = options_.memory_limit;
      const double limit = limits.empty() ? peak.bytes : limits[std::min(r, limits.size() - 1)];
      const Node first = graph_.first(Rank{static_cast<std::int32_t>(r)});
      if (peak.bytes > limit + slack(limit))
        report(Rule::Memory,
               first + static_cast<Node>(peak.position),
               "memory reaches " + plan::number_text(peak.bytes) + "; the limit is " +
                   plan::number_text(limit));
      if (std::abs(peak.left) > slack(peak.bytes) && !program.ranks[r].empty())
        report(Rule::Memory,
               first + static_cast<Node>(program.ranks[r].size() - 1),
               plan::number_text(peak.left) + " of memory is left after the last action");
    }
  }

  /// Rounding of sums of fractions such as thirds of a stage.
  static double slack(double size) { return 1e-9 * std::abs(size); }

  const VerifyOptions& options_;
  const Graph& graph_;
  std::vector<Violation> violations_;
};

void check_loss_weights(const Program& program,
                        const std::vector<double>& weights,
                        std::vector<Violation>& violations) {
  if (weights.empty()) return;
  const auto wanted = static_cast<std::size_t>(program.shape.micro_batches);
  double sum = 0;
  for (const double weight : weights) sum += weight;
  std::string fault;
  if (weights.size() != wanted)
    fault = std::to_string(weights.size()) + " loss weights for " + std::to_string(wanted) +
            " micro-batches";
  else if (std::abs(sum - 1) > 1e-9)
    fault = "the loss weights sum to " + std::to_string(sum) + ", not 1";
  if (!fault.empty()) violations.push_back({Rule::LossWeight, Rank{0}, 0, fault});
}

}  // namespace

std::vector<Violation> verify(const Program& program, const Transport& transport) {
  VerifyOptions options;
  options.transport = transport;
  return verify(program, options);
}

std::vector<Violation> verify(const Program& program, const VerifyOptions& options) {
  auto violations = plan::Structure(program).check();
  if (violations.empty()) violations = OrderCheck(Graph(program), options).check();
  check_loss_weights(program, options.loss_weights, violations);
  return violations;
}

std::vector<Violation> verify(const Graph& graph, const VerifyOptions& options) {
  auto violations = plan::Structure(graph.program()).check();
  if (violations.empty()) violations = OrderCheck(graph, options).check();
  check_loss_weights(graph.program(), options.loss_weights, violations);
  return violations;
}

}  // namespace millrace
