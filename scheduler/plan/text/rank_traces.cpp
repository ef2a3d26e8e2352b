// Sources: torch 2.13, torch/distributed/pipelining/schedules.py; Primus, pp_visualizer.py.
#include "millrace/scheduler/plan/rank_traces.hpp"

#include <algorithm>
#include <fmt/format.h>
#include <optional>
#include <set>
#include <tuple>

#include <nlohmann/json.hpp>

#include "millrace/core/error.hpp"
#include "plan/text/action_text.hpp"
#include "plan/text/trace_events.hpp"

namespace millrace {

namespace {

using nlohmann::json;

constexpr int kMostChunks = 1024;

/// Of a region's name; nothing for other events, none for a message that arrives.
std::optional<std::vector<Action>> actions_of(std::string_view name) {
  std::string text;
  if (name.starts_with("PP:"))
    text = name.substr(3);
  else if (name.starts_with("Forward "))
    text = "0F" + std::string(name.substr(8));
  else if (name.starts_with("Backward "))
    text = "0B" + std::string(name.substr(9));
  else if (name == "gloo:recv")
    return std::vector<Action>{};
  if (text.starts_with('(')) text = text.substr(1, text.find(')') - 1);
  std::vector<Action> actions;
  for (std::size_t from = 0; from < text.size();) {
    const std::size_t end = std::min(text.find(';', from), text.size());
    const ScannedAction scanned =
        scan_action(std::string_view(text).substr(from, end - from), ActionGrammar::Csv);
    if (!scanned.message.empty() || scanned.sharding) return std::nullopt;
    actions.push_back(scanned.action);
    from = end + 1;
  }
  if (actions.empty()) return std::nullopt;
  return actions;
}

}  // namespace

/// The regions of one file.
class RankTraces::Kineto {
  /// With its passes (two of a pair), a send or a receive, or, without actions, a message.
  struct Region {
    std::vector<Action> actions;
    double start = 0, end = 0;
  };

 public:
  explicit Kineto(std::size_t rank) : rank_(rank) {}

  /// Takes the events that count; returns whether there are passes.
  bool read(std::string_view text) {
    const plan::ReadTrace read = plan::read_events(text, [this](const json& event) {
      take(event);
      return "";
    });
    if (read.fault) return false;
    if (!device_.empty()) host_ = std::move(device_);
    std::ranges::stable_sort(host_, {}, &Region::start);
    return std::ranges::any_of(host_, [](const Region& it) { return !it.actions.empty(); });
  }

  /// Times of the passes without what they wait for.
  [[nodiscard]] std::vector<Pass> passes() const {
    std::vector<Pass> result;
    Region receive;  // the latest
    std::map<Message, double> arrivals;
    for (const Region& region : host_) {
      if (region.actions.empty()) {
        if (!receive.actions.empty() && region.start <= receive.end)
          arrivals[message_of(receive.actions.front())] = region.end;
      } else if (is_receive(region.actions.front().op)) {
        receive = region;
      } else {
        add(region, arrivals, result);
      }
    }
    return result;
  }

 private:
  using Message = std::tuple<bool, Stage, MicroBatch>;

  static Message message_of(const Action& action) {
    return {
        action.op == Op::RecvForward || action.op == Op::Forward, action.stage, action.micro_batch};
  }

  void take(const json& event) {
    const auto text = [&](const char* name) {
      const json value = event.value(name, json());
      return value.is_string() ? value.get<std::string>() : "";
    };
    const json start = event.value("ts", json()), length = event.value("dur", json());
    if (text("ph") != "X" || !start.is_number() || !length.is_number()) return;
    const std::string name = text("name");
    auto actions = actions_of(name);
    if (!actions) return;
    if (!name.starts_with("PP:"))
      for (Action& action : *actions) action.stage = Stage{static_cast<std::int32_t>(rank_)};
    const double from = start.get<double>();
    if (length.get<double>() < 0) return;
    auto& regions = text("cat") == "gpu_user_annotation" ? device_ : host_;
    regions.push_back({std::move(*actions), from, from + length.get<double>()});
  }

  /// W and what a rank has itself wait for no message.
  static void add(const Region& region,
                  std::map<Message, double>& arrivals,
                  std::vector<Pass>& passes) {
    std::vector<Action> actions = region.actions;
    std::erase_if(actions, [](const Action& action) { return !is_compute(action.op); });
    double start = region.start;
    for (const Action& action : actions)
      if (action.op != Op::BackwardWeight)
        if (const auto found = arrivals.extract(message_of(action)))
          start = std::clamp(found.mapped(), start, region.end);
    const double share =
        (region.end - start) / static_cast<double>(std::max<std::size_t>(1, actions.size()));
    for (const Action& action : actions) {
      passes.push_back({action, start, start + share});
      start += share;
    }
  }

  std::size_t rank_;
  std::vector<Region> host_, device_;
};

bool RankTraces::add(std::string_view text) {
  const auto has = [&](std::string_view key) { return text.find(key) != std::string_view::npos; };
  if (!has("\"traceEvents\"") && (has("\"fwd_start\"") || has("\"pp_size\""))) {
    try {
      add_primus(text);
    } catch (const json::exception& error) {
      throw DataError(std::string("this is not a file of Primus' dump_pp_data: ") + error.what());
    }
    return true;
  }
  Kineto file(ranks_.size());
  if (!file.read(text)) return false;
  ranks_.push_back(file.passes());
  return true;
}

void RankTraces::add_primus(std::string_view text) {
  const json file = json::parse(text);
  if (file.contains("pp_size")) {
    chunks_ = file.value("vp_size", file.value("vpp_size", 1));
    return;
  }
  const auto shorter = [](const std::string& a, const std::string& b) {
    return std::pair(a.size(), a) < std::pair(b.size(), b);
  };
  std::map<std::string, json, decltype(shorter)> steps(shorter);  // by number
  for (const auto& [number, step] : file.items()) steps[number] = step;
  std::vector<Pass> passes;
  for (const auto& [number, step] : steps) {
    const bool split = !step.value("wgrad_start", json::array()).empty();
    for (const auto& [name, op] : {std::pair<std::string, Op>{"fwd", Op::Forward},
                                   {"bwd", split ? Op::BackwardInput : Op::Backward},
                                   {"wgrad", Op::BackwardWeight}}) {
      const auto starts = step.value(name + "_start", std::vector<double>{});
      const auto ends = step.value(name + "_end", std::vector<double>{});
      const auto units = step.value(name + "_minibatch", std::vector<int>{});
      const auto chunks = step.value(name + "_chunk", std::vector<int>{});
      const bool named = units.size() >= starts.size() && chunks.size() >= starts.size();
      for (std::size_t i = 0; i < std::min(starts.size(), ends.size()); ++i) {
        Action action;
        action.op = op;
        action.micro_batch.value = named ? units[i] : static_cast<int>(i);
        passes.push_back({action, 1e3 * starts[i], 1e3 * ends[i], named ? chunks[i] : kOrder});
        if (named && (chunks[i] < 0 || chunks[i] > kMostChunks))
          throw DataError(fmt::format("chunk {}: must be from 0 to {}", chunks[i], kMostChunks));
      }
    }
  }
  ranks_.push_back(std::move(passes));
}

Action RankTraces::placed(std::size_t rank, const Pass& pass) const {
  Action action = pass.action;
  if (pass.chunk == kStage) return action;
  const int p = static_cast<int>(ranks_.size()), r = static_cast<int>(rank);
  int chunk = pass.chunk;
  if (chunk == kOrder) {  // Megatron-LM's interleaved order: groups of p micro-batches
    require(chunks_ >= 1 && chunks_ <= kMostChunks,
            "the files do not name chunks: config.json of their folder must come with them");
    const int i = action.micro_batch.value;
    chunk = i / p % chunks_;
    if (action.op != Op::Forward) chunk = chunks_ - 1 - chunk;
    action.micro_batch.value = i / p / chunks_ * p + i % p;
  }
  action.stage.value = v_placement_ && chunk == 1 ? 2 * p - 1 - r : chunk * p + r;
  return action;
}

std::string RankTraces::trace(bool last_step) const {
  std::string text = "{\"traceEvents\":[";
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    std::vector<std::pair<std::string, Pass>> passes;
    std::set<std::string> seen;
    for (auto pass = ranks_[rank].rbegin(); pass != ranks_[rank].rend(); ++pass) {
      std::string name = to_string(placed(rank, *pass));
      if (seen.insert(name).second || !last_step) passes.emplace_back(std::move(name), *pass);
    }
    for (auto it = passes.rbegin(); it != passes.rend(); ++it)
      text += fmt::format(
          "{}{{\"ph\":\"X\",\"name\":\"{}\",\"pid\":0,\"tid\":{},\"ts\":{},"
          "\"dur\":{},\"args\":{{\"action\":\"{}\"}}}}",
          text.back() == '[' ? "\n" : ",\n",
          it->first,
          rank,
          it->second.start,
          it->second.end - it->second.start,
          it->first);
  }
  return text + "]}\n";
}

}  // namespace millrace
