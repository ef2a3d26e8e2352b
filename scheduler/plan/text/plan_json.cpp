// The plan file. Reading builds the document first, then checks every field against what the text
// itself contains, so that no number in it decides how much memory is taken.
#include <algorithm>
#include <cstdint>
#include <initializer_list>

#include <nlohmann/json.hpp>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/stage_graph.hpp"
#include "millrace/scheduler/plan/text.hpp"
#include "plan/text/action_text.hpp"
#include "plan/text/json_fault.hpp"
#include "plan/text/plan_hash.hpp"

namespace millrace {

namespace {

using nlohmann::json;

constexpr int kPlanVersion = 1;
constexpr std::size_t kMostDiagnostics = 100;

// Faults of structure end the reading; faults of actions are collected.
class PlanReader {
 public:
  explicit PlanReader(std::string_view text) : text_(text) {}

  ParsedPlan read() {
    ParsedJson parsed = parse_json(text_);
    if (parsed.fault) return {std::nullopt, {std::move(*parsed.fault)}};
    document_ = std::move(parsed.document);
    try {
      read_document();
    } catch (const JsonFault& fault) {
      complain(fault.path, fault.message);
    }
    if (!diagnostics_.empty()) return {std::nullopt, std::move(diagnostics_)};
    return {std::move(plan_), {}};
  }

 private:
  void complain(const std::vector<JsonStep>& path, std::string message, std::size_t beyond = 0) {
    if (diagnostics_.size() < kMostDiagnostics)
      diagnostics_.push_back(located(text_, path, std::move(message), beyond));
  }

  static const json& field(const json& object, std::vector<JsonStep> path, std::string_view name) {
    const auto found = object.find(name);
    if (found == object.end())
      throw JsonFault{std::move(path), "the field '" + std::string(name) + "' is missing"};
    return *found;
  }

  static void only(const json& object,
                   const std::vector<JsonStep>& path,
                   std::initializer_list<std::string_view> names) {
    for (const auto& [name, value] : object.items()) {
      if (std::find(names.begin(), names.end(), name) != names.end()) continue;
      std::vector<JsonStep> inside = path;
      inside.emplace_back(std::string_view(name));
      throw JsonFault{std::move(inside),
                      "the field " + quoted(std::string_view(name)) + " is unknown"};
    }
  }

  static int integer(const json& value,
                     const std::vector<JsonStep>& path,
                     std::int64_t least,
                     std::int64_t most) {
    const std::string range = std::to_string(least) + " to " + std::to_string(most);
    if (!value.is_number_integer()) throw JsonFault{path, "expected a whole number from " + range};
    const bool huge = value.is_number_unsigned() && value.get<std::uint64_t>() > INT32_MAX;
    const std::int64_t number = huge ? INT64_MAX : value.get<std::int64_t>();
    if (number < least || number > most)
      throw JsonFault{path, "the number is " + value.dump() + "; allowed are " + range};
    return static_cast<int>(number);
  }

  static const json& list(const json& value, const std::vector<JsonStep>& path) {
    if (!value.is_array()) throw JsonFault{path, "expected a list"};
    return value;
  }

  void read_document() {
    if (!document_.is_object()) throw JsonFault{{}, "a plan file is a JSON object"};
    const json& version = field(document_, {}, "millrace_plan");
    integer(version, {"millrace_plan"}, kPlanVersion, kPlanVersion);
    only(document_,
         {},
         {"millrace_plan", "name", "shape", "program", "boundaries", "hash", "checksum"});
    const json& name = field(document_, {}, "name");
    if (!name.is_string()) throw JsonFault{{"name"}, "expected a string"};
    plan_.program.name = name.get<std::string>();
    const json& program = list(field(document_, {}, "program"), {"program"});
    read_program(program);
    read_shape(field(document_, {}, "shape"), program.size());
    check_ranges(program);
    if (document_.contains("boundaries")) read_boundaries(document_["boundaries"]);
    if (diagnostics_.empty()) check_hashes();
  }

  void read_program(const json& program) {
    if (program.empty()) throw JsonFault{{"program"}, "the program has no rank"};
    for (std::size_t rank = 0; rank < program.size(); ++rank) {
      if (!program[rank].is_string())
        throw JsonFault{{"program", rank}, "expected a string of actions"};
      plan_.program.ranks.emplace_back();
      read_rank(program[rank].get_ref<const std::string&>(), rank);
    }
  }

  // Actions separated by single spaces, the halves of a pair by +.
  void read_rank(std::string_view text, std::size_t rank) {
    std::size_t from = 0;
    while (from < text.size()) {
      const std::size_t end = std::min(text.find_first_of(" +", from), text.size());
      ScannedAction scanned = scan_action(text.substr(from, end - from), ActionGrammar::Plan);
      const std::size_t column = from + 1;  // beyond the quote
      if (!scanned.message.empty())
        complain({"program", rank}, std::move(scanned.message), column + scanned.offset);
      scanned.action.with_next = end < text.size() && text[end] == '+';
      plan_.program.ranks.back().push_back(scanned.action);
      from = end + 1;
      if (end < text.size() && from == text.size())
        complain({"program", rank}, "expected an action, found the end of the string", from + 1);
    }
  }

  void read_shape(const json& object, std::size_t rows) {
    if (!object.is_object()) throw JsonFault{{"shape"}, "expected an object"};
    only(object,
         {"shape"},
         {"ranks",
          "micro_batches",
          "slices",
          "forward_only",
          "placement",
          "replica_of",
          "edges",
          "ties",
          "sinks"});
    Shape& shape = plan_.program.shape;
    const auto most = static_cast<std::int64_t>(8 * plan_.program.size() + 8);
    shape.ranks = integer(field(object, {"shape"}, "ranks"), {"shape", "ranks"}, 1, INT32_MAX);
    if (static_cast<std::size_t>(shape.ranks) != rows)
      throw JsonFault{{"shape", "ranks"},
                      "the shape has " + std::to_string(shape.ranks) + " ranks, but the program " +
                          std::to_string(rows)};
    shape.micro_batches =
        integer(field(object, {"shape"}, "micro_batches"), {"shape", "micro_batches"}, 1, most);
    if (object.contains("slices"))
      shape.slices = integer(object["slices"], {"shape", "slices"}, 1, most);
    const json forward_only = object.value("forward_only", json(false));
    if (!forward_only.is_boolean())
      throw JsonFault{{"shape", "forward_only"}, "expected true or false"};
    shape.forward_only = forward_only.get<bool>();
    read_placement(field(object, {"shape"}, "placement"));
    if (object.contains("replica_of")) read_replica_of(object["replica_of"]);
    if (object.contains("sinks")) read_sinks(object["sinks"]);
    if (object.contains("edges")) read_edges(object["edges"]);
    if (!shape.sinks.empty()) check_graph(shape, "sinks");
    if (object.contains("ties")) read_ties(object["ties"]);
    // As for the CSV: the program bounds the shape, so that later work stays in proportion. Each
    // factor is at most `most` or the length of the text, so the product of two fits.
    const std::int64_t units = std::int64_t{shape.micro_batches} * shape.slices;
    if (units > most || units * shape.stages() > most)
      throw JsonFault{{"shape"},
                      "the shape has " + std::to_string(shape.stages()) + " stages, " +
                          std::to_string(shape.micro_batches) + " micro-batches and " +
                          std::to_string(shape.slices) + " slices, but the program only " +
                          std::to_string(plan_.program.size()) + " actions"};
  }

  void read_placement(const json& replicas) {
    const Shape& shape = plan_.program.shape;
    list(replicas, {"shape", "placement"});
    if (replicas.empty() || replicas.size() > 2)
      throw JsonFault{{"shape", "placement"},
                      "the placement has a list for each of 1 or 2 replicas"};
    std::vector<std::vector<Rank>> rank_of;
    for (std::size_t replica = 0; replica < replicas.size(); ++replica) {
      const json& stages = list(replicas[replica], {"shape", "placement", replica});
      if (stages.empty() || stages.size() != replicas.front().size())
        throw JsonFault{{"shape", "placement", replica},
                        "every replica has the same number of stages, at least 1"};
      rank_of.emplace_back();
      for (std::size_t stage = 0; stage < stages.size(); ++stage)
        rank_of.back().emplace_back(
            integer(stages[stage], {"shape", "placement", replica, stage}, 0, shape.ranks - 1));
    }
    plan_.program.shape.placement = Placement(std::move(rank_of));
  }

  void read_replica_of(const json& replicas) {
    Shape& shape = plan_.program.shape;
    if (list(replicas, {"shape", "replica_of"}).size() !=
        static_cast<std::size_t>(shape.micro_batches))
      throw JsonFault{{"shape", "replica_of"},
                      "replica_of has " + std::to_string(replicas.size()) + " entries for " +
                          std::to_string(shape.micro_batches) + " micro-batches"};
    for (std::size_t i = 0; i < replicas.size(); ++i)
      shape.replica_of.emplace_back(
          integer(replicas[i], {"shape", "replica_of", i}, 0, shape.replicas() - 1));
  }

  /// [stage, ...]; no field means the last stage alone.
  void read_sinks(const json& sinks) {
    Shape& shape = plan_.program.shape;
    if (list(sinks, {"shape", "sinks"}).empty())
      throw JsonFault{{"shape", "sinks"}, "there is no sink; leave the field out"};
    for (std::size_t i = 0; i < sinks.size(); ++i)
      shape.sinks.emplace_back(integer(sinks[i], {"shape", "sinks", i}, 0, shape.stages() - 1));
  }

  /// [[from, output, to, input], ...]; no field means a chain.
  void read_edges(const json& edges) {
    Shape& shape = plan_.program.shape;
    if (list(edges, {"shape", "edges"}).empty())
      throw JsonFault{{"shape", "edges"}, "there is no edge; without this field it is a chain"};
    for (std::size_t i = 0; i < edges.size(); ++i) {
      const json& edge = list(edges[i], {"shape", "edges", i});
      if (edge.size() != 4)
        throw JsonFault{{"shape", "edges", i}, "an edge is [from stage, output, to stage, input]"};
      const auto number = [&](std::size_t at) {
        return integer(edge[at], {"shape", "edges", i, at}, 0, UINT16_MAX);
      };
      shape.edges.push_back({Stage{number(0)}, number(1), Stage{number(2)}, number(3)});
    }
    check_graph(shape, "edges");
  }

  /// [[[stage, weight], [stage, weight], ...], ...].
  void read_ties(const json& ties) {
    Shape& shape = plan_.program.shape;
    if (list(ties, {"shape", "ties"}).empty())
      throw JsonFault{{"shape", "ties"}, "there is no tie; leave the field out"};
    for (std::size_t i = 0; i < ties.size(); ++i) {
      StageTie& tie = shape.ties.emplace_back();
      const json& weights = list(ties[i], {"shape", "ties", i});
      for (std::size_t k = 0; k < weights.size(); ++k) {
        const json& weight = list(weights[k], {"shape", "ties", i, k});
        if (weight.size() != 2 || !weight[1].is_string())
          throw JsonFault{{"shape", "ties", i, k}, "a tied weight is [stage, name]"};
        const int stage =
            integer(weight[0], {"shape", "ties", i, k, std::size_t{0}}, 0, UINT16_MAX);
        tie.weights.push_back({Stage{stage}, weight[1].get<std::string>()});
      }
    }
    check_graph(shape, "ties");
  }

  static void check_graph(const Shape& shape, const char* part) {
    try {
      static_cast<void>(StageGraph(shape));
    } catch (const InvalidArgument& fault) {
      throw JsonFault{{"shape", part}, fault.what()};
    }
  }

  // Numbers outside the shape would be read beyond tables that are sized by the shape.
  void check_ranges(const json& program) {
    const Shape& shape = plan_.program.shape;
    for (std::size_t rank = 0; rank < program.size(); ++rank)
      for (std::size_t i = 0; i < plan_.program.ranks[rank].size(); ++i) {
        const Action& action = plan_.program.ranks[rank][i];
        if (action.stage.value < shape.stages() && action.micro_batch.value < shape.micro_batches &&
            action.slice.value < shape.slices && action.replica_number < shape.replicas())
          continue;
        complain({"program", rank},
                 to_string(action) + ", action " + std::to_string(i) + " of rank " +
                     std::to_string(rank) + ", is outside the shape");
        return;
      }
  }

  void read_boundaries(const json& boundaries) {
    const int stages = plan_.program.shape.stages();
    if (list(boundaries, {"boundaries"}).size() != static_cast<std::size_t>(stages - 1))
      throw JsonFault{{"boundaries"},
                      "there are " + std::to_string(boundaries.size()) + " boundaries; " +
                          std::to_string(stages) + " stages have " + std::to_string(stages - 1)};
    std::int64_t least = 1;
    for (std::size_t i = 0; i < boundaries.size(); ++i) {
      plan_.boundaries.push_back(integer(boundaries[i], {"boundaries", i}, least, INT32_MAX));
      least = std::int64_t{plan_.boundaries.back()} + 1;
    }
  }

  void check_hashes() {
    const std::string hash = plan_hash(plan_.program);
    const std::string checksum = plan_checksum(hash, plan_.program.name, plan_.boundaries);
    check_hash("hash", hash, "the program");
    check_hash("checksum", checksum, "name and boundaries");
  }

  void check_hash(std::string_view field_name, const std::string& right, const std::string& what) {
    const auto value = document_.find(field_name);
    if (value != document_.end() && *value != right)
      throw JsonFault{{field_name},
                      "the " + std::string(field_name) + " of " + what + " is " + right +
                          ", not this one: the file was changed after it was written"};
  }

  std::string_view text_;
  json document_;
  Plan plan_;
  std::vector<Diagnostic> diagnostics_;
};

void require_boundaries(const Plan& plan) {
  const int stages = plan.program.shape.stages();
  if (plan.boundaries.empty()) return;
  require(plan.boundaries.size() + 1 == static_cast<std::size_t>(stages),
          "the plan has " + std::to_string(plan.boundaries.size()) + " boundaries; " +
              std::to_string(stages) + " stages have " + std::to_string(stages - 1));
  int previous = 0;
  for (const int boundary : plan.boundaries) {
    require(boundary > previous,
            "boundary " + std::to_string(boundary) + " after " + std::to_string(previous) +
                "; boundaries ascend from 1");
    previous = boundary;
  }
}

json shape_json(const Shape& shape) {
  json placement = json::array();
  for (int replica = 0; replica < shape.replicas(); ++replica) {
    json stages = json::array();
    for (int stage = 0; stage < shape.stages(); ++stage)
      stages.push_back(shape.rank(Replica{replica}, Stage{stage}).value);
    placement.push_back(std::move(stages));
  }
  json result = {{"ranks", shape.ranks},
                 {"micro_batches", shape.micro_batches},
                 {"slices", shape.slices},
                 {"forward_only", shape.forward_only},
                 {"placement", std::move(placement)}};
  for (const Replica replica : shape.replica_of) result["replica_of"].push_back(replica.value);
  for (const StageEdge& edge : shape.edges)
    result["edges"].push_back({edge.from.value, edge.output, edge.to.value, edge.input});
  for (const Stage sink : shape.sinks) result["sinks"].push_back(sink.value);
  for (const StageTie& tie : shape.ties) {
    json weights = json::array();
    for (const StageWeight& weight : tie.weights)
      weights.push_back(json::array({weight.stage.value, weight.name}));
    result["ties"].push_back(std::move(weights));
  }
  return result;
}

std::string dumped(const json& value, const std::string& what) {
  try {
    return value.dump();
  } catch (const json::type_error&) {
    throw InvalidArgument(what + " is not UTF-8, which a plan file is");
  }
}

std::string rank_text(const std::vector<Action>& list) {
  std::string text;
  for (std::size_t i = 0; i < list.size(); ++i) {
    text += to_string(list[i]);
    if (i + 1 < list.size()) text += list[i].with_next ? '+' : ' ';
  }
  return text;
}

}  // namespace

ParsedPlan read_plan(std::string_view text) {
  return PlanReader(text).read();
}

std::string write_plan(const Plan& plan) {
  const Program& program = plan.program;
  require(program.shape.replicas() <= 2,
          "the plan has " + std::to_string(program.shape.replicas()) +
              " replicas; a plan file holds at most 2");
  require_boundaries(plan);
  const std::string hash = plan_hash(program);
  // Written field by field: one line per rank reads and diffs better than either of the library's
  // two layouts.
  std::string text = "{\n\"millrace_plan\": " + std::to_string(kPlanVersion);
  text += ",\n\"name\": " + dumped(program.name, "the program's name");
  text += ",\n\"shape\": " + dumped(shape_json(program.shape), "the name of a tied weight");
  text += ",\n\"program\": [";
  const char* separator = "\n";
  for (const auto& list : program.ranks) {
    require(list.empty() || !list.back().with_next,
            "the last action of a rank is the first half of a pair");
    text += separator + json(rank_text(list)).dump();
    separator = ",\n";
  }
  text += "\n]";
  if (!plan.boundaries.empty()) text += ",\n\"boundaries\": " + json(plan.boundaries).dump();
  text += ",\n\"hash\": \"" + hash + "\"";
  text += ",\n\"checksum\": \"" + plan_checksum(hash, program.name, plan.boundaries) + "\"\n}\n";
  return text;
}

}  // namespace millrace
