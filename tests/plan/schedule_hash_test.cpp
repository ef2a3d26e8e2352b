// Every schedule of the catalogue is the program it always was: one number per schedule stands for
// its programs at many shapes, times and limits. Recorded before the generators that search came to
// share their engines; a change that moves one says so and why.
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/generators.hpp"
#include "millrace/scheduler/plan/text.hpp"

namespace millrace {
namespace {

struct PassTimes {
  double forward, input, weight, latency;  // whole numbers: no rounding decides
};

using Priced = std::pair<ScheduleOptions, Costs>;

/// FNV-1a, 64 bits, of the hashes of all programs; a refusal counts as such.
class Digest {
 public:
  void add(std::string_view name, const Priced& of) {
    try {
      add(plan_hash(generate(name, of.first, of.second)));
    } catch (const InvalidArgument&) {
      add("refused");
    }
  }

  [[nodiscard]] std::uint64_t value() const { return value_; }

 private:
  void add(const std::string& text) {
    for (const char letter : text)
      value_ = (value_ ^ static_cast<unsigned char>(letter)) * 1099511628211U;
  }

  std::uint64_t value_ = 14695981039346656037U;
};

/// With the chunks or slices that the schedule takes.
ScheduleOptions shaped(const ScheduleEntry& entry, int ranks, int micro_batches) {
  ScheduleOptions options{.ranks = ranks, .micro_batches = micro_batches};
  if (entry.takes("chunks")) options.chunks = 1 + micro_batches % 3;
  if (entry.takes("slices")) options.slices = 1 + ranks % 3 + (entry.slice_each_rank ? ranks : 0);
  if (entry.takes("waves")) options.waves = 1 + micro_batches % 2;
  return options;
}

/// With unequal times and with limits, where they matter.
std::vector<Priced> priced(const ScheduleEntry& entry, ScheduleOptions options) {
  const std::vector<PassTimes> times = {{1, 1, 1, 0}, {2, 3, 1, 0}, {1, 2, 2, 1}};
  const std::vector<double> limits = {0.0, 0.5, 0.625, 1.5};
  std::vector<Priced> all;
  for (std::size_t t = 0; t < (entry.timed ? times.size() : 1); ++t)
    for (std::size_t l = 0; l < (entry.takes("memory_limit") ? limits.size() : 1); ++l) {
      if (l > 0) options.memory_limit = limits[l] * options.ranks;
      if (l == 0) options.memory_limit.reset();
      all.push_back({options,
                     {.forward = {times[t].forward},
                      .input = {times[t].input},
                      .weight = {times[t].weight},
                      .latency = {times[t].latency}}});
    }
  return all;
}

std::vector<Priced> variants(const ScheduleEntry& entry) {
  std::vector<Priced> all;
  for (const int ranks : {1, 2, 3, 4, 5, 8})
    for (const int micro_batches : {1, 2, 3, 5, 8, 13, 24})
      for (const Priced& options : priced(entry, shaped(entry, ranks, micro_batches)))
        all.push_back(options);
  return all;
}

const std::map<std::string_view, std::uint64_t> kDigests = {
    {"gpipe", 7865961185201596885U},
    {"gpipe-lifo", 168490126345723820U},
    {"1f1b", 17807065798299692169U},
    {"eager-1f1b", 7354188583547752241U},
    {"interleaved", 18184345269180075312U},
    {"interleaved-pairs", 18224654936567503247U},
    {"bfs", 16344283638689401794U},
    {"bfs-lifo", 7811580999682741962U},
    {"bfs-balanced", 10714787002682946386U},
    {"zb-h1", 5650546016376737106U},
    {"zb-h2", 14562666308161897442U},
    {"interleaved-zb", 12453490373865749167U},
    {"group-interleaved", 5660594814169184281U},
    {"grouped-zb", 7992411871297504092U},
    {"zb-v", 15095385622217573520U},
    {"zb-v-auto", 10679452102290127772U},
    {"v-half", 15305520738648255983U},
    {"v-min", 1168437640629305828U},
    {"v-zb", 1855599708414622959U},
    {"1f1b-v", 6346178691702523287U},
    {"zb-auto", 15173618302782655085U},
    {"dualpipe", 3564544418980600872U},
    {"dualpipe-v", 3659395555459354286U},
    {"stp", 17986616090344808908U},
    {"chimera", 17168179296004528256U},
    {"bitpipe", 11517140297512680568U},
    {"wave", 2007945023820750049U},
    {"seq-1f1b", 5417987251129723833U},
    {"seqpipe", 6708147749203069433U},
    {"seq-vpp", 14132790504203295807U},
    {"seq-smart-vpp", 17584794885880580242U},
    {"slimpipe", 14211636739194487702U},
    {"slimpipe-eager", 18089503721554505170U},
    {"slimpipe-zb", 7119712777010787083U},
    {"slimpipe-zb-eager", 9775767799479228430U},
    {"terapipe", 6260968401220158869U},
    {"forward", 15290065471731072589U},
};

TEST(Catalogue, MakesTheProgramsThatItAlwaysMade) {
  for (const ScheduleEntry& entry : schedules()) {
    Digest digest;
    for (const Priced& options : variants(entry)) digest.add(entry.name, options);
    const std::uint64_t recorded = kDigests.contains(entry.name) ? kDigests.at(entry.name) : 0;
    EXPECT_EQ(digest.value(), recorded) << entry.name;
  }
}

}  // namespace
}  // namespace millrace
