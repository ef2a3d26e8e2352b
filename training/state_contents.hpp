// Contents: what TrainingState holds. Filled in state_contents.cpp before the first step, read and
// written by name in state.cpp.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/training/state.hpp"

namespace millrace {

constexpr std::string_view kValuePart = "value";
constexpr std::string_view kGradientPart = "gradient";
constexpr std::size_t kPartsOfStatistics = 2;  // those two

struct TrainingState::Contents {
  void add(Rank rank, const HostedStage& hosted);
  void make_room(const Optimizer& optimizer);
  void name_globally(ProcessGroup& group);
  void find_copies();
  void choose_speakers();
  [[nodiscard]] std::size_t number(std::string_view name) const;
  [[nodiscard]] StateEntry& hosted(std::string_view name) const;
  [[nodiscard]] Tensor& part_of(StateEntry& entry, std::string_view part) const;
  [[nodiscard]] std::set<std::size_t> with_tied(std::set<std::size_t> numbers) const;
  [[nodiscard]] std::set<std::size_t> named_by(std::string_view pattern) const;
  void write(std::string_view name, std::string_view part, const void* bytes);

  std::vector<std::vector<std::string>> tied;
  TrainingCounters counters;
  std::vector<std::string> parts{std::string(kValuePart), std::string(kGradientPart)};
  std::vector<std::string> names;   // of all processes, ascending
  std::vector<std::size_t> member;  // by number: a process that hosts it
  std::vector<bool> trained;        // by number; the others are running statistics
  std::vector<bool> frozen;         // by number
  std::vector<std::vector<StateEntry>> of_rank;
  std::vector<std::vector<StateEntry*>> copies;  // by number: those here, first copies first
  std::vector<Parameter*> speakers;              // one copy of each hosted here, by name
};

}  // namespace millrace
