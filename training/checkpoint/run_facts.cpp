// See run_facts.hpp.
#include "training/checkpoint/run_facts.hpp"

#include <nlohmann/json.hpp>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/text.hpp"
#include "millrace/stages/compiled.hpp"
#include "millrace/training/checkpoint.hpp"
#include "training/checkpoint/names.hpp"
#include "training/checkpoint/strict_json.hpp"

namespace millrace {
namespace {

constexpr std::uint64_t kMost = std::uint64_t{1} << 20U;

std::string vectors() {
  if (__builtin_cpu_supports("avx512f")) return "avx512";
  return __builtin_cpu_supports("avx2") ? "avx2" : "baseline";
}

}  // namespace

std::map<std::string, std::string> machine_facts() {
  return {{"compiled code", compiled_code()},
          {"processor", vectors()},
          {"products", product_libraries()}};
}

std::string write_run(const Program& program,
                      int processes,
                      const std::map<std::string, std::string>& more) {
  std::map<std::string, std::string> facts = machine_facts();
  facts["schedule"] = program.name;
  facts["plan"] = plan_hash(program);
  facts["ranks"] = std::to_string(program.shape.ranks);
  facts["processes"] = std::to_string(processes);
  for (const auto& [name, value] : more) facts[name] = value;
  constexpr auto kReplace = nlohmann::json::error_handler_t::replace;
  return nlohmann::json(facts).dump(1, ' ', false, kReplace) + "\n";
}

std::map<std::string, std::string> read_run(const std::string& folder, FileSystem& files) {
  std::map<std::string, std::string> facts;
  try {
    const Tensor text = files.read(path_in(folder, kRunFile), kMost);
    const nlohmann::json document =
        parse_strictly({static_cast<const char*>(text.data()), text.bytes()}, "run");
    for (const auto& [name, value] : document.items())
      if (value.is_string()) facts[name] = value.get<std::string>();
  } catch (const Error&) {
    return {};
  }
  return facts;
}

std::map<std::string, std::string> run_facts_of(const std::string& folder) {
  FileSystem files;
  return read_run(folder, files);
}

}  // namespace millrace
