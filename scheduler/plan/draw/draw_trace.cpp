// Trace-event JSON out and in. Times are written in full precision, so that a trace read back gives
// the same timeline to the last digit or two.
#include <algorithm>
#include <map>
#include <optional>

#include <nlohmann/json.hpp>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/graph.hpp"
#include "plan/draw/picture.hpp"
#include "plan/model/validate.hpp"
#include "plan/text/trace_events.hpp"

namespace millrace {

namespace {

using nlohmann::json;

constexpr double kMicroseconds = 1e6;
constexpr int kAllDigits = 17;
constexpr const char* kArrived = "arrived";  // of a receive: when its message was there

std::string category(Op op) {
  if (is_compute(op)) return "compute";
  return is_send(op) || is_receive(op) ? "message" : "step";
}

class TraceWriter {
 public:
  TraceWriter(const Program& program, const Timeline& timeline)
      : program_(program), timeline_(timeline), graph_(program) {}

  std::string write() {
    text_ = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[";
    event("\"ph\":\"M\",\"name\":\"process_name\",\"pid\":0,\"args\":{\"name\":" +
          json(program_.name).dump(-1, ' ', true, json::error_handler_t::replace) + "}");
    for (std::size_t rank = 0; rank < program_.ranks.size(); ++rank) {
      const std::string number = std::to_string(rank);
      event("\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":0,\"tid\":" + number +
            ",\"args\":{\"name\":\"rank " + number + "\"}");
      for (std::size_t i = 0; i < program_.ranks[rank].size(); ++i) write_action(rank, i);
    }
    return text_ + "\n]}\n";
  }

 private:
  void event(const std::string& members) {
    text_ += (first_ ? "\n{" : ",\n{") + members + "}";
    first_ = false;
  }

  [[nodiscard]] std::string microseconds(double ticks) const {
    return picture::number(ticks / timeline_.ticks_per_unit * kMicroseconds, kAllDigits);
  }

  /// What is drawn of an action: a receive only until its rank goes on, for the slices of one track
  /// must not overlap.
  [[nodiscard]] Interval visible(std::size_t rank, std::size_t position) const {
    const auto& all = timeline_.ranks[rank];
    Interval time = all[position];
    if (is_receive(program_.ranks[rank][position].op) && position + 1 < all.size())
      time.end = std::max(time.start, std::min(time.end, all[position + 1].start));
    return time;
  }

  void write_action(std::size_t rank, std::size_t position) {
    const Action& action = program_.ranks[rank][position];
    const Interval whole = timeline_.ranks[rank][position];
    const Interval time = visible(rank, position);
    const std::string name = to_string(action);
    const std::string arrived =
        time == whole ? "" : ",\"" + std::string(kArrived) + "\":" + microseconds(whole.end);
    event("\"ph\":\"X\",\"name\":\"" + name + "\",\"cat\":\"" + category(action.op) +
          "\",\"pid\":0,\"tid\":" + std::to_string(rank) + ",\"ts\":" + microseconds(time.start) +
          ",\"dur\":" + microseconds(time.end - time.start) + ",\"args\":{\"action\":\"" + name +
          "\",\"what\":\"" + describe(action) + "\",\"index\":" + std::to_string(position) +
          arrived + "}");
    const Node node =
        graph_.first(Rank{static_cast<std::int32_t>(rank)}) + static_cast<Node>(position);
    for (const Node producer : graph_.producers(node)) write_arrow(producer, node, time);
  }

  // A flow from the end of the producer on another rank to the start of its use.
  void write_arrow(Node producer, Node consumer, const Interval& use) {
    const Rank source = graph_.rank(producer);
    const Rank destination = graph_.rank(consumer);
    if (source == destination) return;
    const std::size_t position = producer - graph_.first(source);
    const Interval made = timeline_.ranks[source.index()][position];
    // Perfetto binds an arrow to the slice that encloses its time: the middle is inside for sure.
    const std::string common =
        ",\"name\":\"message\",\"cat\":\"message\",\"pid\":0,\"id\":" + std::to_string(arrows_++);
    event("\"ph\":\"s\"" + common + ",\"tid\":" + std::to_string(source.value) +
          ",\"ts\":" + microseconds((made.start + made.end) / 2));
    event("\"ph\":\"f\",\"bp\":\"e\"" + common + ",\"tid\":" + std::to_string(destination.value) +
          ",\"ts\":" + microseconds((use.start + use.end) / 2));
  }

  const Program& program_;
  const Timeline& timeline_;
  Graph graph_;
  std::string text_;
  bool first_ = true;
  std::size_t arrows_ = 0;
};

class TraceReader {
 public:
  explicit TraceReader(const Program& program) : program_(program) {
    for (std::size_t rank = 0; rank < program.ranks.size(); ++rank) {
      timeline_.ranks.emplace_back(program.ranks[rank].size());
      seen_.emplace_back(program.ranks[rank].size());
      for (std::size_t i = 0; i < program.ranks[rank].size(); ++i)
        position_[{static_cast<std::int64_t>(rank), to_string(program.ranks[rank][i])}] = i;
    }
  }

  std::optional<Diagnostic> read(std::string_view text) {
    std::string first;  // the fault of an event: when all are read, there may be a better reason
    plan::ReadTrace read = plan::read_events(text, [&](const json& event) {
      std::string fault = read_event(event);
      if (first.empty()) first = std::move(fault);
      return "";
    });
    if (read.fault) return read.fault;
    if (first.empty()) first = fill_gaps();
    if (misfit_ && ranks_ != ranks_of_program())
      first = "the trace is of " + std::to_string(ranks_) + (ranks_ == 1 ? " rank" : " ranks") +
              ", the program of " + std::to_string(ranks_of_program());
    if (first.empty()) return std::nullopt;
    if (read.cut_off) first += "; the file ends within its list of events";
    return Diagnostic{1, 1, std::move(first)};
  }

  Timeline take() { return std::move(timeline_); }

 private:
  // This and the next return the fault, empty when there is none.

  std::string read_event(const json& event) {
    if (event.value("ph", json()) != "X") return "";
    const json args = event.value("args", json::object());
    if (!args.contains("action") || !args["action"].is_string()) return "";
    const auto action = args["action"].get<std::string>();
    const json tid = event.value("tid", json());
    const json start = event.value("ts", json());
    const json length = event.value("dur", json());
    if (!tid.is_number_integer() || !start.is_number() || !length.is_number())
      return "the event of " + action + " lacks tid, ts or dur";
    constexpr std::int64_t most = 1 << 20;
    ranks_ = std::max(ranks_, std::clamp<std::int64_t>(tid.get<std::int64_t>(), -1, most) + 1);
    const auto found = position_.find({tid.get<std::int64_t>(), action});
    misfit_ = misfit_ || found == position_.end();
    if (found == position_.end())
      return "the trace has " + action + " on rank " + tid.dump() + ", the program has not";
    const auto rank = static_cast<std::size_t>(found->first.first);
    if (seen_[rank][found->second])
      return "the trace has " + action + " on rank " + tid.dump() + " twice; keep one step";
    seen_[rank][found->second] = true;
    const double begin = start.get<double>() / kMicroseconds;
    const json arrived = args.value(kArrived, json());
    const double end =
        arrived.is_number() ? arrived.get<double>() : start.get<double>() + length.get<double>();
    timeline_.ranks[rank][found->second] = {begin, end / kMicroseconds};
    return "";
  }

  /// With actions.
  [[nodiscard]] std::int64_t ranks_of_program() const {
    std::int64_t ranks = 0;
    for (std::size_t rank = 0; rank < program_.ranks.size(); ++rank)
      if (!program_.ranks[rank].empty()) ranks = static_cast<std::int64_t>(rank) + 1;
    return ranks;
  }

  std::string fill_gaps() {
    for (std::size_t rank = 0; rank < seen_.size(); ++rank) {
      double end = 0;
      for (std::size_t i = 0; i < seen_[rank].size(); ++i) {
        const Action& action = program_.ranks[rank][i];
        misfit_ = !seen_[rank][i] && is_compute(action.op);
        if (misfit_)
          return "the trace lacks " + to_string(action) + " of rank " + std::to_string(rank);
        if (!seen_[rank][i]) timeline_.ranks[rank][i] = {end, end};
        end = timeline_.ranks[rank][i].end;
      }
    }
    return "";
  }

  const Program& program_;
  Timeline timeline_;
  std::vector<std::vector<bool>> seen_;
  std::map<std::pair<std::int64_t, std::string>, std::size_t> position_;
  std::int64_t ranks_ = 0;  // of the trace
  bool misfit_ = false;     // trace and program have not the same actions
};

}  // namespace

std::string draw_trace(const Program& program, const Timeline& timeline) {
  plan::require_aligned(program, timeline);
  return TraceWriter(program, timeline).write();
}

ParsedTimeline read_trace(std::string_view text, const Program& program) {
  TraceReader reader(program);
  if (std::optional<Diagnostic> fault = reader.read(text)) return {std::nullopt, {*fault}};
  return {reader.take(), {}};
}

}  // namespace millrace
