// From trace events to medians; see trace_costs.hpp.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <set>
#include <utility>

#include <nlohmann/json.hpp>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/costs.hpp"
#include "plan/text/name_pattern.hpp"
#include "plan/text/trace_events.hpp"

namespace millrace {

namespace {

using nlohmann::json;
using plan::NameParts;
using plan::NamePattern;
using plan::ReadTrace;

constexpr double kMicroseconds = 1e6;
constexpr std::array<const char*, 4> kOpNames = {"F", "B", "I", "W"};
enum OpIndex : std::size_t { kForward, kBackward, kInput, kWeight };

std::array<std::vector<NamePattern>, 4> compiled(const TracePatterns& patterns) {
  return {NamePattern::several(patterns.forward),
          NamePattern::several(patterns.backward),
          NamePattern::several(patterns.input),
          NamePattern::several(patterns.weight)};
}

std::string text_of(const json& event, const char* name) {
  const auto found = event.find(name);
  return found != event.end() && found->is_string() ? found->get<std::string>() : "";
}

double middle_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

}  // namespace

/// Reads one trace into tables of its own.
struct TraceCosts::Reader {
  const TraceCostOptions& options;
  std::int64_t file;
  std::array<std::vector<NamePattern>, 4> patterns = compiled(options.patterns);
  Table any = {}, device = {};
  std::map<std::pair<std::string, std::string>, std::vector<json>> open = {};  // by pid and tid
  Phases unread = {};

  ReadTrace read(std::string_view text) {
    ReadTrace result =
        plan::read_events(text, [this](const json& event) { return read_event(event); });
    for (const auto& [thread, begun] : open)
      for (const json& event : begun) note(event, "B without E");
    return result;
  }

  /// Remembers an event whose name is wanted and whose phase is not read.
  void note(const json& event, const std::string& phase) {
    const std::string name = text_of(event, "name");
    for (std::size_t op = 0; op < patterns.size(); ++op)
      if (std::ranges::any_of(patterns[op], [&](const NamePattern& pattern) {
            return pattern.match(name).has_value();
          }))
        unread[op].insert(phase);
  }

  // Those below return the fault, empty when there is none.

  std::string read_event(const json& event) {
    const std::string phase = text_of(event, "ph");
    if (phase == "X") return take(event, "dur", [](double, double length) { return length; });
    if (phase != "B" && phase != "E") {
      if (phase != "M") note(event, phase);  // M is data about the trace itself
      return "";
    }
    auto& begun = open[{event.value("pid", json()).dump(), event.value("tid", json()).dump()}];
    if (phase == "B") begun.push_back(event);
    if (phase == "B" || begun.empty()) return "";
    json whole = std::move(begun.back());
    begun.pop_back();
    whole["end"] = event.value("ts", json());
    return take(whole, "end", [](double start, double end) { return end - start; });
  }

  template <class Length>
  std::string take(const json& event, const char* until, const Length& length_of) {
    const std::string name = text_of(event, "name"), category = text_of(event, "cat");
    if (!options.category.empty() && category != options.category) return "";
    for (std::size_t op = 0; op < patterns.size(); ++op)
      for (const NamePattern& pattern : patterns[op]) {
        const auto parts = pattern.match(name);
        if (!parts) continue;
        const json start = event.value("ts", json()), end = event.value(until, json());
        if (!start.is_number() || !end.is_number()) return "the event " + name + " has no duration";
        const double length = length_of(start.get<double>(), end.get<double>());
        if (!std::isfinite(length) || length < 0)
          return "the event " + name + " ends before it begins";
        return keep(op, event, *parts, category, length / kMicroseconds);
      }
    return "";
  }

  std::string keep(std::size_t op,
                   const json& event,
                   const NameParts& parts,
                   const std::string& category,
                   double seconds) {
    const auto stage = parts.stage ? parts.stage : stage_beside(event);
    if (!stage)
      return "the event " + text_of(event, "name") + " has no whole number as its " +
             (options.stage == StageOf::Process ? "pid" : "tid");
    const Place place{op, *stage, parts.slice.value_or(0)};
    std::vector<Table*> tables = {&any};
    if (options.category.empty() && category == "gpu_user_annotation") tables.push_back(&device);
    for (Table* table : tables) {
      Durations& durations = (*table)[place];
      durations.seconds.push_back(seconds);
      if (parts.micro_batch) durations.micro_batches.push_back(*parts.micro_batch);
    }
    return "";
  }

  /// What is known of the stage without the name.
  [[nodiscard]] std::optional<std::int64_t> stage_beside(const json& event) const {
    if (options.stage == StageOf::File) return file;
    const json id = event.value(options.stage == StageOf::Process ? "pid" : "tid", json());
    if (!id.is_number_integer() || id < 0) return std::nullopt;
    return id.get<std::int64_t>();
  }
};

TraceCosts::TraceCosts(const TraceCostOptions& options) : options_(options) {
  require(options.ranks >= 0,
          "a cost file has at least 1 rank; got " + std::to_string(options.ranks));
  for (const auto& patterns : compiled(options.patterns))
    for (const NamePattern& pattern : patterns)
      require(pattern.has_stage() || options.stage != StageOf::Name,
              "a pattern of event names has no {stage}; say where else the stage stands: the "
              "process, the thread or the file");
}

std::optional<Diagnostic> TraceCosts::add(std::string_view trace) {
  Reader reader{.options = options_, .file = files_};
  const ReadTrace read = reader.read(trace);
  if (read.fault) return read.fault;
  ++files_;
  cut_after_ = read.cut_off ? std::optional(read.events) : std::nullopt;
  for (std::size_t op = 0; op < unread_.size(); ++op) unread_[op].merge(reader.unread[op]);
  for (const auto& [from, into] : {std::pair{&reader.any, &of_any_}, {&reader.device, &of_device_}})
    for (auto& [place, durations] : *from) {
      Durations& all = (*into)[place];
      all.seconds.insert(all.seconds.end(), durations.seconds.begin(), durations.seconds.end());
      all.micro_batches.insert(
          all.micro_batches.end(), durations.micro_batches.begin(), durations.micro_batches.end());
    }
  return std::nullopt;
}

TraceCosts::Seen TraceCosts::seen() const {
  Seen seen;
  std::set<std::int64_t> micro_batches;
  for (const auto& [place, durations] : table()) {
    seen.events[place.op] += durations.seconds.size();
    micro_batches.insert(durations.micro_batches.begin(), durations.micro_batches.end());
  }
  seen.micro_batches = micro_batches.size();
  return seen;
}

double TraceCosts::median(const Place& place) const {
  const auto found = table().find(place);
  return found == table().end() ? -1 : middle_of(found->second.seconds);
}

double TraceCosts::needed(const Place& place) const {
  const double seconds = median(place);
  const auto op = static_cast<OpIndex>(place.op);
  require(seconds >= 0,
          std::string("no event of the trace is ") +
              (op == kForward || op == kInput ? "an " : "a ") + kOpNames[place.op] + " of stage " +
              std::to_string(place.stage) +
              (place.slice > 0 ? ", slice " + std::to_string(place.slice) : "") +
              (op == kBackward ? ", nor an I and a W" : "") + unread_phases(op));
  return seconds;
}

/// "; events with its name are of phase b, e; read are X, and B with E": empty when there are none.
std::string TraceCosts::unread_phases(std::size_t op) const {
  std::string phases;
  for (const std::string& phase : unread_[op]) phases += (phases.empty() ? "" : ", ") + phase;
  if (phases.empty()) return "";
  return "; events with its name are of phase " + phases +
         "; those of X, and of B with E, are read";
}

/// What costs() cannot know from the trace.
std::string TraceCosts::assumption(const std::set<std::int64_t>& stages) const {
  std::string halved;
  bool every = true;
  for (const std::int64_t stage : stages) {
    const bool whole =
        !options_.forward_only && median({kInput, stage, 0}) < 0 && median({kWeight, stage, 0}) < 0;
    if (whole) halved += (halved.empty() ? "" : ", ") + std::to_string(stage);
    every = every && whole;
  }
  if (halved.empty()) return "";
  return "I and W are half of B each, which the trace does not split" +
         (every ? "" : " in stage " + halved);
}

void TraceCosts::add_backward(Costs& costs, std::int64_t stage, std::int64_t slice) const {
  const double whole = median({kBackward, stage, slice});
  const bool split = median({kInput, stage, slice}) >= 0 || median({kWeight, stage, slice}) >= 0;
  const auto half = [&](OpIndex op) {
    if (options_.forward_only) return 0.0;
    return split ? needed({op, stage, slice}) : needed({kBackward, stage, slice}) / 2;
  };
  costs.input.push_back(half(kInput));
  costs.weight.push_back(half(kWeight));
  costs.backward.push_back(
      whole >= 0 && !options_.forward_only ? whole : costs.input.back() + costs.weight.back());
}

Costs TraceCosts::costs() const {
  require(seen().events[kForward] > 0,
          "no event of the trace is an F" + (unread_[kForward].empty()
                                                 ? "; look at the pattern of its name"
                                                 : unread_phases(kForward)));
  std::set<std::int64_t> stages;
  std::int64_t slices = 0;
  for (const auto& [place, durations] : table()) {
    stages.insert(place.stage);
    slices = std::max(slices, place.slice + 1);
  }
  // The numbers of processes and threads only say the order of the stages.
  const bool numbered = options_.stage == StageOf::Name || options_.stage == StageOf::File;
  for (std::int64_t stage = 0; numbered && stage < std::ssize(stages); ++stage)
    require(stages.contains(stage),
            "no event of the trace is of stage " + std::to_string(stage) + "; the last is " +
                std::to_string(*stages.rbegin()));
  Costs file;
  file.stages = static_cast<int>(stages.size());
  file.ranks = options_.ranks == 0 ? file.stages : options_.ranks;
  require(file.stages % file.ranks == 0,
          std::to_string(file.ranks) + " ranks cannot hold the " + std::to_string(file.stages) +
              " stages of the trace evenly");
  file.slices = static_cast<int>(slices);
  for (const std::int64_t stage : stages)
    for (std::int64_t slice = 0; slice < slices; ++slice) {
      file.forward.push_back(needed({kForward, stage, slice}));
      add_backward(file, stage, slice);
    }
  if (options_.forward_only || seen().events[kBackward] == 0) file.backward.clear();
  file.assumed = assumption(stages);
  return file;
}

}  // namespace millrace
