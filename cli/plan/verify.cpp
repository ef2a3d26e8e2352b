// millrace verify: is the schedule correct, can it hang, does it keep the bits.
#include <algorithm>
#include <iostream>
#include <memory>
#include <string>

#include <nlohmann/json.hpp>

#include "cli/plan/figures.hpp"
#include "cli/plan/options.hpp"
#include "cli/plan/progress.hpp"
#include "cli/subcommands.hpp"
#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/draw.hpp"
#include "millrace/scheduler/plan/passes.hpp"

namespace millrace::cli {

namespace {

/// Whether a program with messages can hang on one kind of transport.
struct Proof {
  std::string transport;
  std::vector<Violation> cycle;  ///< empty: it cannot
};

struct Verdict {
  std::vector<Violation> violations;
  // Of programs that can run:
  std::optional<Accumulation> order;
  std::vector<RankReport> ranks;
  // Of valid programs:
  std::optional<Program> lowered;  ///< with messages in pairs; only where a proof needs it
  std::vector<Proof> proofs;
  std::vector<ChannelCapacity> channels;
};

struct VerifyArguments {
  PlanOptions plan;
  int capacity = 1;
  std::optional<Transport> transport;
};

Transport transport_named(const std::string& name) {
  for (const auto& [known, transport] : {std::pair{"unbounded", Transport::unbounded()},
                                         {"rendezvous", Transport::rendezvous()},
                                         {"fifo", Transport::fifo()}})
    if (name == known) return transport;
  throw InvalidArgument("--transport " + name + ": must be unbounded, rendezvous or fifo");
}

/// With messages, where a transport is named, unless that is a fault which verify explains.
Program program_of(const std::string& subject, const VerifyArguments& arguments) {
  Program program = program_of(subject, arguments.plan);
  if (!arguments.transport || !verify(program).empty()) return program;
  Program lowered = insert_messages(insert_reductions(program));
  lowered.name = program.name;
  return lowered;
}

std::string title_of(const Transport& transport) {
  if (transport.ordered) return "fifo";
  if (transport.kind == Transport::Kind::Rendezvous) return "rendezvous";
  if (transport.kind == Transport::Kind::Unbounded) return "unbounded";
  return "capacity " + std::to_string(transport.capacity);
}

void prove_each(const Graph& graph, const std::vector<Transport>& transports, Verdict& verdict) {
  for (const Transport& transport : transports) {
    VerifyOptions checks;
    checks.transport = transport;
    verdict.proofs.push_back({title_of(transport), verify(graph, checks)});
  }
}

/// Whether insert_reductions leaves the program as it is.
bool reduces_nothing(const Program& program) {
  return program.shape.replicas() == 1;
}

/// The messages are written out only where a program without them proves nothing.
void prove(const Graph& graph,
           const Timeline& timeline,
           const VerifyArguments& arguments,
           Verdict& verdict) {
  const Program& program = graph.program();
  std::vector<Transport> transports = {
      Transport::rendezvous(), Transport::bounded(arguments.capacity), Transport::unbounded()};
  if (arguments.transport && arguments.transport->ordered)
    transports.push_back(*arguments.transport);
  if (graph.has_messages()) {
    prove_each(graph, transports, verdict);
  } else if (reduces_nothing(program) && inserted_messages_cannot_hang(graph, timeline)) {
    for (const Transport& transport : transports)
      verdict.proofs.push_back({title_of(transport), {}});
  } else {
    verdict.lowered = insert_messages(insert_reductions(program));
    prove_each(Graph(*verdict.lowered), transports, verdict);
  }
  verdict.channels = channel_capacities(graph);
}

/// Whether the violations leave a program that can run.
bool runs(const std::vector<Violation>& violations) {
  return std::all_of(violations.begin(), violations.end(), [](const Violation& violation) {
    return violation.rule == Rule::Memory;
  });
}

/// The graph of a program, where its lists fit its shape.
std::optional<Graph> graph_of(const Program& program) {
  try {
    return std::optional<Graph>(std::in_place, program);
  } catch (const InvalidArgument&) {
    return std::nullopt;  // verify says what is wrong
  }
}

std::vector<Violation> violations_of(const Program& program,
                                     const std::optional<Graph>& graph,
                                     const VerifyArguments& arguments) {
  const PlanOptions& options = arguments.plan;
  VerifyOptions checks;
  checks.transport = arguments.transport.value_or(Transport::unbounded());
  checks.memory_limit = memory_limits_of(options, program.shape.ranks, program.shape.stages());
  if (!checks.memory_limit.empty()) {
    checks.cost = cost_of(program.shape, options);
  }
  return graph ? verify(*graph, checks) : verify(program, checks);
}

nlohmann::json violation_json(const Violation& violation, const Program& program) {
  nlohmann::json others = nlohmann::json::array();
  for (const ActionPlace& place : violation.others)
    others.push_back({{"rank", place.rank.value}, {"position", place.position}});
  const std::size_t rank = violation.rank.index();
  const bool there = rank < program.ranks.size() && violation.position < program.ranks[rank].size();
  return {{"rule", static_cast<int>(violation.rule)},
          {"name", name_of(violation.rule)},
          {"rank", violation.rank.value},
          {"position", violation.position},
          {"action", there ? to_string(program.ranks[rank][violation.position]) : ""},
          {"others", std::move(others)},
          {"sentence", violation.message}};
}

using RankField = ResultField<RankReport>;

/// What depends on no times.
nlohmann::json peaks_json(const RankReport& rank) {
  nlohmann::json peaks = nlohmann::json::object();
  for (const RankField& field : result_fields<RankReport>())
    if (field.unit != RankField::Unit::Time) peaks[field.name] = field.of(rank);
  return peaks;
}

void print_json(const Program& program, const Verdict& verdict, std::ostream& out) {
  nlohmann::json all = {{"schedule", program.name},
                        {"actions", program.size()},
                        {"valid", verdict.violations.empty()},
                        {"violations", nlohmann::json::array()},
                        {"violations_by_rule", nlohmann::json::object()},
                        {"deadlock_free", nlohmann::json::object()},
                        {"same_bits", nullptr}};
  all.update(identity_json(program));
  if (verdict.order) {
    all["same_bits"] = verdict.order->ascending;
    all["accumulation"] = verdict.order->message;
  }
  for (const Violation& violation : verdict.violations) {
    all["violations"].push_back(violation_json(violation, program));
    nlohmann::json& count = all["violations_by_rule"][name_of(violation.rule)];
    count = count.is_null() ? 1 : count.get<int>() + 1;
  }
  for (const Proof& proof : verdict.proofs) {
    all["deadlock_free"][proof.transport] = proof.cycle.empty();
    if (!proof.cycle.empty()) all["cycles"][proof.transport] = proof.cycle.front().message;
  }
  if (verdict.violations.empty()) all["capacity"] = to_json(verdict.channels);
  for (const RankReport& rank : verdict.ranks) all["per_rank"].push_back(peaks_json(rank));
  out << all.dump() << '\n';
}

/// The message, and the grid with the faulty actions in brackets under it.
void print(const Violation& violation, const Program& program, std::ostream& out) {
  std::vector<ActionPlace> marks = {{violation.rank, violation.position}};
  marks.insert(marks.end(), violation.others.begin(), violation.others.end());
  out << to_string(violation, program) << '\n' << draw_order(program, marks);
}

void print_violations(const Program& program,
                      const std::vector<Violation>& violations,
                      std::ostream& out) {
  constexpr std::size_t most_grids = 5;
  for (std::size_t i = 0; i < violations.size(); ++i) {
    if (i < most_grids)
      print(violations[i], program, out);
    else
      out << to_string(violations[i], program) << '\n';
  }
}

template <class Item, class Value>
std::string joined(const std::vector<Item>& items, Value&& value) {
  std::string text;
  for (const Item& item : items) text += (text.empty() ? "" : " ") + plain(value(item));
  return text;
}

void print(const Program& program, const Verdict& verdict, std::ostream& out) {
  print_violations(program, verdict.violations, out);
  if (!verdict.violations.empty()) return;
  out << program.name << ": valid, " << program.size() << " actions\n"
      << "deadlock-free" << (has_messages(program) ? "" : " with sends and receives inserted")
      << ":";
  for (const Proof& proof : verdict.proofs)
    out << (&proof == &verdict.proofs.front() ? " " : ", ") << proof.transport
        << (proof.cycle.empty() ? " yes" : " no");
  out << '\n';
  for (const Proof& proof : verdict.proofs)
    print_violations(verdict.lowered ? *verdict.lowered : program, proof.cycle, out);
  out << depths_text(verdict.channels);
  for (const RankField& field : result_fields<RankReport>())
    if (field.unit == RankField::Unit::MicroBatches)
      out << "peak " << field.title << " by rank: " << joined(verdict.ranks, field.of) << '\n';
  out << "same bits as sequential: "
      << (verdict.order->ascending ? std::string("yes") : "no, " + verdict.order->message) << '\n';
}

/// The files. What shows times is refused for a program that has none.
void write_asked(const std::string& subject,
                 const Program& program,
                 const Cost& cost,
                 const Timeline* timeline,
                 PlanOptions options) {
  for (const auto& [option, path] :
       {std::pair("--svg", &options.svg), {"--html", &options.html}, {"--trace", &options.trace}}) {
    if (timeline != nullptr || !*path) continue;
    std::cerr << "millrace: " << option
              << " is not written: a schedule that cannot run has no times to draw\n";
    path->reset();
  }
  write_files(
      outputs(options, program, cost, timeline == nullptr ? Timeline{} : *timeline, subject));
}

void run(const std::string& subject, const VerifyArguments& arguments) {
  const PlanOptions& options = arguments.plan;
  check_outputs(options);
  PlanProgress progress("verify " + subject);
  progress.at("making the schedule");
  const Program program = program_of(subject, arguments);
  progress.at("checking " + std::to_string(program.size()) + " actions");
  Verdict verdict;
  const std::optional<Graph> graph = graph_of(program);
  verdict.violations = violations_of(program, graph, arguments);
  std::optional<Timeline> timeline;
  Cost cost;
  if (graph && runs(verdict.violations)) {
    cost = cost_of(program.shape, options);
    timeline = timeline_of(*graph, cost);
    verdict.ranks = report(*graph, cost, *timeline).ranks;
    verdict.order = accumulation(program);
  }
  progress.at("proving that it cannot hang");
  if (timeline && verdict.violations.empty()) prove(*graph, *timeline, arguments, verdict);
  progress.end();
  // A file on standard output stays alone there; the verdict is never left out.
  std::ostream& out = prints_file(options) ? std::cerr : std::cout;
  if (options.json)
    print_json(program, verdict, out);
  else
    print(program, verdict, out);
  write_asked(subject, program, cost, timeline ? &*timeline : nullptr, options);
  if (!verdict.violations.empty()) throw ExitCode{1};
}

}  // namespace

void add_verify(CLI::App& app) {
  CLI::App* subcommand =
      app.add_subcommand("verify", "Prove a schedule correct, or name what is wrong");
  auto subject = std::make_shared<std::string>();
  auto arguments = std::make_shared<VerifyArguments>();
  subcommand->add_option("schedule", *subject, "Name (millrace list), plan file or CSV file")
      ->required();
  add_plan_options(*subcommand, arguments->plan);
  add_json_option(*subcommand, arguments->plan);
  subcommand->add_option_function<std::string>(
      "--capacity",
      [arguments](const std::string& text) {
        arguments->capacity = static_cast<int>(whole_number("--capacity", text, 1));
      },
      "Messages that a bounded channel holds, for the second proof (default 1)");
  subcommand
      ->add_option_function<std::string>(
          "--transport",
          [arguments](const std::string& text) { arguments->transport = transport_named(text); },
          "Report a fault on this transport, with messages inserted where there are none: "
          "rendezvous, fifo (messages of a rank to another arrive in the order sent, without tags: "
          "gloo, NCCL) or unbounded")
      ->type_name("NAME");
  subcommand->callback([subject, arguments] { run(*subject, *arguments); });
}

}  // namespace millrace::cli
