#include "training/checkpoint/run_facts.hpp"

#include <nlohmann/json.hpp>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/text.hpp"
#include "millrace/stages/products.hpp"
#include "millrace/training/checkpoint.hpp"
#include "training/checkpoint/names.hpp"
#include "training/checkpoint/strict_json.hpp"

namespace millrace {
namespace {

constexpr std::uint64_t kMost = std::uint64_t{1} << 20U;
constexpr std::string_view kSeal = "run_xxh3_128";

/// Names of files need not be UTF-8.
std::string utf8_of(const std::string& text) {
  constexpr auto kReplace = nlohmann::json::error_handler_t::replace;
  return nlohmann::json::parse(nlohmann::json(text).dump(-1, ' ', false, kReplace));
}

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
  nlohmann::ordered_json document;
  for (const auto& [name, value] : facts) document[name] = utf8_of(value);
  return sealed(std::move(document), kSeal);
}

/// Older versions wrote no seal.
std::map<std::string, std::string> read_run(const std::string& folder, FileSystem& files) {
  const std::string path = path_in(folder, kRunFile);
  Tensor bytes;
  try {
    bytes = files.read(path, kMost);
  } catch (const StorageError& error) {
    throw DataError(error.what());
  }
  const std::string_view text(static_cast<const char*>(bytes.data()), bytes.bytes());
  if (ends_sealed(text) || text.find(kSeal) != text.npos) check_seal(text, path, "run.json");
  std::map<std::string, std::string> facts;
  const nlohmann::json document = parse_strictly(text, path);
  if (!document.is_object()) throw DataError(path + ": is not an object");
  for (const auto& [name, value] : document.items())
    if (value.is_string() && name != kSeal) facts[name] = value.get<std::string>();
  return facts;
}

std::map<std::string, std::string> run_facts_of(const std::string& folder) {
  FileSystem files;
  return read_run(folder, files);
}

}  // namespace millrace
