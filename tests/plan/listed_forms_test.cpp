// What `millrace list` says, evaluated as it is printed, against the naive replay: every bubble and
// every peak, wherever the conditions in the text hold.
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include <gtest/gtest.h>

#include "millrace/core/error.hpp"
#include "millrace/scheduler/plan/generators.hpp"
#include "millrace/scheduler/plan/passes.hpp"
#include "support/formula.hpp"
#include "support/naive_replay.hpp"

namespace millrace {
namespace {

using testing_plan::Form;
using testing_plan::form_of;
using testing_plan::Formula;
using testing_plan::holds;
using testing_plan::NaiveReplay;
using testing_plan::Values;

/// Said beside the conditions, and made true by what is run: nothing to check.
const std::vector<std::string> kRemarks = {"hides latency",
                                           "halves of a pair one by one",
                                           "pairs of cost FB",
                                           "pairs of cost FB = F+B",
                                           "k chunks held",
                                           "limit p",
                                           "rounded down"};

/// What a program does, with nothing of the library but its list.
struct Figures {
  double makespan = 0, span = 0, busiest = 0;
  std::vector<double> peaks;  // by rank, of a full stage

  [[nodiscard]] double bubble() const { return makespan - busiest; }
  [[nodiscard]] double span_bubble() const { return span - busiest; }
};

double peak_on(const Program& program, std::size_t rank) {
  int held = 0, most = 0;
  for (const Action& action : program.ranks[rank]) {
    held += action.op == Op::Forward ? 1 : 0;
    most = std::max(most, held);
    held -= gives_weight_gradient(action.op) ? 1 : 0;
  }
  const Shape& shape = program.shape;
  return 1.0 * most * shape.ranks / shape.stages() / shape.slices;
}

Figures replayed(const Program& program, const Cost& cost) {
  const auto run = NaiveReplay(program, cost).run().value();
  Figures figures;
  for (std::size_t r = 0; r < run.size(); ++r) {
    double busy = 0, last = 0;
    for (const Interval& interval : run[r]) {
      busy += std::max(0.0, interval.end - std::max(last, interval.start));
      last = interval.end;
    }
    figures.makespan = std::max(figures.makespan, last);
    figures.span = std::max(figures.span, last - run[r].front().start);
    figures.busiest = std::max(figures.busiest, busy);
    figures.peaks.push_back(peak_on(program, r));
  }
  for (double* each : {&figures.makespan, &figures.span, &figures.busiest})
    *each /= cost.ticks_per_unit;
  return figures;
}

/// Whether the values lie in the domain that the text states.
bool inside(const Form& form, const Values& values) {
  return std::all_of(form.conditions.begin(), form.conditions.end(), [&](const auto& condition) {
    return std::find(kRemarks.begin(), kRemarks.end(), condition) != kRemarks.end() ||
           holds(condition, values);
  });
}

bool starts(const std::string& text, const std::string& with) {
  return text.compare(0, with.size(), with) == 0;
}

/// The parts of a text between semicolons.
std::vector<std::string> parts_of(std::string_view text) {
  std::vector<std::string> parts;
  for (std::string rest(text); !rest.empty();) {
    const std::size_t end = std::min(rest.find("; "), rest.size());
    parts.push_back(rest.substr(0, end));
    rest.erase(0, std::min(end + 2, rest.size()));
  }
  return parts;
}

/// Whether the entry says: "group g in p..m, last group full or >= p; default the smallest g".
bool has_smallest_group(const ScheduleEntry& entry) {
  return entry.needs.ends_with("group g in p..m, last group full or >= p; default the smallest g");
}

int smallest_group(int p, int m) {
  if (m < p) return m;
  for (int g = p; g < m; ++g)
    if (m % g == 0 || m % g >= p) return g;
  return m;
}

struct Times {
  double forward, input, weight;
};

class Listed {
 public:
  Listed(const ScheduleEntry& entry,
         const ScheduleOptions& options,
         double chunks_held,
         const Times& t = {1, 1, 1})
      : entry_(entry),
        program_(generate(entry.name,
                          options,
                          {.forward = {t.forward}, .input = {t.input}, .weight = {t.weight}})) {
    const Shape& shape = program_.shape;
    values_ = {{"p", shape.ranks},
               {"m", shape.micro_batches},
               {"v", chunks_of(entry, options)},
               {"q", shape.slices},
               {"k", chunks_held},
               {"g", options.group.value_or(0)},
               {"w", options.waves.value_or(1)},
               {"F", t.forward},
               {"I", t.input},
               {"W", t.weight},
               {"B", t.input + t.weight},
               {"FB", t.forward + t.input + t.weight}};
    if (has_smallest_group(entry) && !options.group)
      values_["g"] = smallest_group(shape.ranks, shape.micro_batches);
  }

  /// Returns how many figures were compared.
  int check() {
    const bool atomic = std::string(entry_.bubble).find("pairs of cost") != std::string::npos;
    Cost cost = Cost::of_full_stage(program_.shape, values_["F"], values_["I"], values_["W"]);
    if (atomic)
      cost.pair.ticks.fill(values_["FB"] * cost.ticks_per_unit * program_.shape.ranks /
                           program_.shape.stages());
    const Figures figures = replayed(atomic ? program_ : decouple_pairs(program_), cost);
    int checked = bubbles(figures);
    for (const std::string& part : parts_of(entry_.peak)) checked += peaks(part, figures);
    return checked;
  }

 private:
  int bubbles(const Figures& figures) {
    int checked = 0;
    for (const std::string& part : parts_of(entry_.bubble)) checked += bubble(part, figures);
    return checked;
  }

  int bubble(std::string text, const Figures& figures) {
    if (starts(text, "none") || starts(text, "grows with m") || starts(text, "search finds"))
      return 0;
    const bool span = starts(text, "span "), bound = starts(text, "makespan >= ");
    text.erase(0, span ? 5 : bound ? 12 : 0);
    const Form form = form_of(text);
    if (!inside(form, values_)) return 0;
    const double expected = Formula(form.formula, values_).value();
    if (bound)
      EXPECT_GE(figures.bubble(), expected - 1e-9) << said(text);
    else
      EXPECT_NEAR(span ? figures.span_bubble() : figures.bubble(), expected, 1e-9) << said(text);
    return 1;
  }

  int peaks(const std::string& text, const Figures& figures) {
    if (starts(text, "none") || text == "<= the limit") return 0;
    const bool bound = starts(text, "<= ");
    const Form form = form_of(text.substr(bound ? 3 : 0));
    if (!inside(form, values_)) return 0;
    const bool floor = text.find("rounded down") != std::string::npos;
    double most = 0, largest = 0;
    for (std::size_t r = 0; r < figures.peaks.size(); ++r) {
      values_["r"] = static_cast<double>(r);
      for (const auto& [name, formula] : form.names)
        values_[name] = Formula(formula, values_).value();
      const double expected = Formula(form.formula, values_).value();
      largest = std::max(largest, floor ? std::floor(expected + 1e-9) : expected);
      most = std::max(most, figures.peaks[r]);
      if (!bound && form.formula.find('r') != std::string::npos) {
        EXPECT_NEAR(figures.peaks[r], expected, 1e-9) << said(text) << ", rank " << r;
      }
    }
    if (bound)
      EXPECT_LE(most, largest + 1e-9) << said(text);
    else
      EXPECT_NEAR(most, largest, 1e-9) << said(text);
    return 1;
  }

  [[nodiscard]] std::string said(const std::string& text) const {
    std::string all = program_.name + ": " + text + " with";
    for (const auto& [name, value] : values_) all += " " + name + "=" + std::to_string(value);
    return all;
  }

  const ScheduleEntry& entry_;
  const Program program_;
  Values values_;
};

/// All options of an entry that the forms speak of, for given p and m.
std::vector<ScheduleOptions> variants(const ScheduleEntry& entry, int p, int m) {
  std::vector<ScheduleOptions> all(1);
  all[0].ranks = p;
  all[0].micro_batches = m;
  const auto vary =
      [&](bool has, std::optional<int> ScheduleOptions::*member, const std::vector<int>& values) {
        if (!has) return;
        std::vector<ScheduleOptions> more;
        for (const ScheduleOptions& each : all)
          for (const int value : values) {
            more.push_back(each);
            more.back().*member = value;
          }
        all = std::move(more);
      };
  vary(entry.takes("chunks"), &ScheduleOptions::chunks, {1, 2, 3});
  vary(entry.takes("slices"), &ScheduleOptions::slices, {1, 2, 3});
  vary(entry.takes("waves"), &ScheduleOptions::waves, {1, 2});
  const std::vector<ScheduleOptions> without = all;
  vary(entry.takes("group"), &ScheduleOptions::group, {(p + 1) / 2, p - 1, p, p + 1, m});
  if (has_smallest_group(entry)) all.insert(all.end(), without.begin(), without.end());
  return all;
}

/// The limits to ask for, in chunks: those of v-zb's form, else none.
std::vector<int> limits(const ScheduleEntry& entry, int p) {
  if (entry.name != "v-zb") return {0};
  std::vector<int> all;
  for (int k = 1; k <= 2 * p; ++k) all.push_back(k);
  return all;
}

/// How many figures of the entry were compared with these counts.
int check(const ScheduleEntry& entry, int p, int m) {
  int checked = 0;
  for (ScheduleOptions options : variants(entry, p, m))
    for (const Times& t : {Times{1, 1, 1}, {4, 6, 2}, {3, 3, 2}, {4, 1, 3}, {2, 4, 4}})
      for (const int k : limits(entry, p)) try {
          if (k > 0) options.memory_limit = k / 2.0;
          checked += Listed(entry, options, k, t).check();
        } catch (const InvalidArgument&) {
          continue;  // no meaning with these counts
        }
  return checked;
}

TEST(ListedForms, HoldWhereverTheirTextSaysSo) {
  std::map<std::string_view, int> checked;
  for (const int p : {1, 2, 3, 4, 6})
    for (const int m : std::set<int>{1, p, p + 1, 2 * p - 1, 2 * p, p > 4 ? 1 : 3 * p})
      for (const ScheduleEntry& entry : schedules()) checked[entry.name] += check(entry, p, m);
  for (const ScheduleEntry& entry : schedules()) {
    const std::string bubble(entry.bubble), peak(entry.peak);
    EXPECT_GT(checked[entry.name], 0) << entry.name << ": " << bubble << ", " << peak;
  }
}

// What depends on p modulo 2 and 3 needs more of them.
TEST(ListedForms, HoldOfVSchedulesOfMoreRanks) {
  for (const char* name : {"v-half", "v-min", "1f1b-v"})
    for (int p = 5; p <= 14; ++p)
      for (const int m : {p, 2 * p - 1, 2 * p, 3 * p})
        EXPECT_GT(Listed(find_schedule(name), {.ranks = p, .micro_batches = m}, 0).check(), 0);
}

TEST(ListedForms, TheDefaultGroupIsTheListedOne) {
  int compared = 0;
  for (const ScheduleEntry& entry : schedules()) {
    for (int p = 1; has_smallest_group(entry) && p <= 7; ++p)
      for (int m = 1; m <= 4 * p + 3; ++m, ++compared) {
        ScheduleOptions options{.ranks = p, .micro_batches = m};
        const auto own = generate(entry.name, options).ranks;
        options.group = smallest_group(p, m);
        EXPECT_EQ(generate(entry.name, options).ranks, own) << entry.name << " " << p << " " << m;
      }
  }
  EXPECT_GT(compared, 200);
}

TEST(ListedForms, VZbLeastLimit_IsListed) {
  const std::string text = "limit >= 2 floor((p+4)/3) chunks for p <= 12";
  ASSERT_NE(find_schedule("v-zb").needs.find(text), std::string_view::npos);
  for (int p = 2; p <= 12; ++p) {
    ScheduleOptions options{.ranks = p, .micro_batches = 2 * p};
    const int least = 2 * ((p + 4) / 3);
    options.memory_limit = least / 2.0;
    EXPECT_NO_THROW((void)generate("v-zb", options)) << p;
    options.memory_limit = (least - 1) / 2.0;
    EXPECT_THROW((void)generate("v-zb", options), InvalidArgument) << p;
  }
}

TEST(ListedForms, AreTheReadmes) {
  std::ifstream file(MILLRACE_SOURCE_DIR "/scheduler/README.md");
  std::stringstream readme;
  readme << file.rdbuf();
  for (const ScheduleEntry& entry : schedules()) {
    std::string row;
    for (const std::string_view cell : {entry.needs, entry.bubble, entry.peak, entry.source})
      row += " | " + std::string(cell);
    EXPECT_NE(readme.str().find("| `" + std::string(entry.name) + "`" + row + " |\n"),
              std::string::npos)
        << entry.name;
  }
  std::size_t rows = 0;
  const std::string table = readme.str().substr(readme.str().find("| name | needs | bubble"));
  for (std::size_t at = table.find("\n| `"); at != std::string::npos;
       at = table.find("\n| `", at + 1), ++rows)
    EXPECT_NO_THROW((void)find_schedule(table.substr(at + 4, table.find('`', at + 4) - at - 4)));
  EXPECT_EQ(rows, schedules().size());
}

TEST(ListedForms, TheEvaluatorReadsWhatIsWritten) {
  const Values values{{"p", 4}, {"v", 2}, {"q", 3}, {"F", 5}, {"FB", 7}, {"m", 8}};
  EXPECT_EQ(Formula("(3p-7)/2 F", values).value(), 12.5);
  EXPECT_EQ(Formula("(p-1)FB/(vq)", values).value(), 3.5);
  EXPECT_EQ(Formula("max(p, 2ceil(q/2)) - 1", values).value(), 3);
  EXPECT_THROW((void)Formula("p +", values).value(), std::runtime_error);
  EXPECT_TRUE(holds("p <= F <= m", values));
  EXPECT_FALSE(holds("m >= 2p+1", values));
  EXPECT_TRUE(holds("v divides p", values));
  EXPECT_TRUE(holds("3 does not divide p", values));
  EXPECT_FALSE(holds("p odd", values));
  EXPECT_THROW((void)holds("hides latency", values), std::runtime_error);
}

}  // namespace
}  // namespace millrace
