// millrace verify: is the schedule correct, can it hang, does it keep the bits.
#include <algorithm>
#include <iostream>
#include <memory>
#include <string>

#include <nlohmann/json.hpp>

#include "cli/figures.hpp"
#include "cli/plan_options.hpp"
#include "cli/verbs.hpp"
#include "millrace/scheduler/plan/passes.hpp"

namespace millrace::cli {

namespace {

// The actions round the fault, the faulty one in brackets.
std::string excerpt(const Violation& violation, const Program& program) {
  const std::size_t rank = violation.rank.index();
  if (rank >= program.ranks.size() || violation.position >= program.ranks[rank].size()) return "";
  constexpr std::size_t around = 4;
  const auto& list = program.ranks[rank];
  const std::size_t from = violation.position - std::min(around, violation.position);
  const std::size_t to = std::min(list.size(), violation.position + around + 1);
  std::string text = "    rank " + std::to_string(rank) + ":" + (from > 0 ? " ..." : "");
  for (std::size_t i = from; i < to; ++i) {
    const std::string action = millrace::to_string(list[i]);
    text += i == violation.position ? " [" + action + "]" : " " + action;
  }
  return text + (to < list.size() ? " ...\n" : "\n");
}

bool terminates(const Program& lowered, const Transport& transport) {
  return verify(lowered, transport).empty();
}

bool has_messages(const Program& program) {
  for (const auto& list : program.ranks)
    for (const Action& action : list)
      if (is_send(action.op) || is_receive(action.op)) return true;
  return false;
}

nlohmann::json proofs(const Program& program) {
  const Program lowered =
      has_messages(program) ? program : insert_messages(insert_reductions(program));
  return {{"rendezvous", terminates(lowered, Transport::rendezvous())},
          {"bounded_1", terminates(lowered, Transport::bounded(1))},
          {"unbounded", terminates(lowered, Transport::unbounded())}};
}

std::vector<Violation> violations_of(const Program& program, const PlanOptions& options) {
  VerifyOptions checks;
  if (const auto limit = memory_limit_of(options, program.shape.ranks)) {
    checks.memory_limit = {*limit};
    checks.cost = cost_of(program.shape, options);
  }
  return verify(program, checks);
}

void print_json(const Program& program,
                const std::vector<Violation>& violations,
                const nlohmann::json& deadlock_free,
                const Accumulation& order) {
  nlohmann::json all = {{"valid", violations.empty()},
                        {"deadlock_free", deadlock_free},
                        {"same_bits", order.ascending},
                        {"violations", nlohmann::json::array()}};
  for (const Violation& violation : violations)
    all["violations"].push_back({{"rule", static_cast<int>(violation.rule)},
                                 {"rank", violation.rank.value},
                                 {"position", violation.position},
                                 {"sentence", to_string(violation, program)}});
  std::cout << all.dump() << '\n';
}

void print(const Program& program,
           const std::vector<Violation>& violations,
           const nlohmann::json& deadlock_free,
           const Accumulation& order) {
  const auto answer = [&](const char* transport) {
    return deadlock_free[transport].get<bool>() ? "yes" : "no";
  };
  for (const Violation& violation : violations)
    std::cout << to_string(violation, program) << '\n' << excerpt(violation, program);
  if (!violations.empty()) return;
  std::cout << program.name << ": valid, " << program.size() << " actions\n"
            << "deadlock-free, with messages placed in pairs: rendezvous " << answer("rendezvous")
            << ", one message per channel " << answer("bounded_1") << ", unbounded "
            << answer("unbounded") << '\n'
            << "same bits as sequential: "
            << (order.ascending ? std::string("yes") : "no, " + order.sentence) << '\n';
}

void run(const std::string& subject, const PlanOptions& options) {
  const Program program = program_of(subject, options);
  const std::vector<Violation> violations = violations_of(program, options);
  const Accumulation order = accumulation(program);
  const nlohmann::json deadlock_free =
      violations.empty() ? proofs(program) : nlohmann::json::object();
  if (options.json)
    print_json(program, violations, deadlock_free, order);
  else
    print(program, violations, deadlock_free, order);
  if (!violations.empty()) throw ExitCode{1};
}

}  // namespace

void add_verify(CLI::App& app) {
  CLI::App* verb = app.add_subcommand("verify", "Prove a schedule correct, or name what is wrong");
  auto subject = std::make_shared<std::string>();
  auto options = std::make_shared<PlanOptions>();
  verb->add_option("schedule", *subject, "Name (millrace list), plan file or CSV file")->required();
  add_plan_options(*verb, *options);
  verb->callback([subject, options] { run(*subject, *options); });
}

}  // namespace millrace::cli
