// A matrix of factors with few cases: every pair of values of two factors that rules allow occurs
// in one of them (a pairwise cover), or some are drawn by a seed. The rules have names, and all
// that they exclude is counted, so that nothing goes missing without a word.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "millrace/core/random.hpp"

namespace millrace::test {

/// Something that may differ between cases, with all that it may be.
struct Factor {
  std::string name;
  std::vector<std::string> values;
};

/// A value of each factor, by number.
using Choice = std::vector<std::size_t>;

/// Cases that have no meaning, and why.
struct Exclusion {
  std::string name;
  std::function<bool(const Choice&)> excludes;
};

class Matrix {
 public:
  Matrix(std::vector<Factor> factors, std::vector<Exclusion> exclusions)
      : factors_(std::move(factors)), exclusions_(std::move(exclusions)) {
    for (const Factor& factor : factors_) {
      first_.push_back(values_);
      values_ += factor.values.size();
    }
    reachable_.assign(values_ * values_, false);
    look_at_all();
  }

  /// Allowed cases.
  [[nodiscard]] std::size_t cases() const { return cases_; }
  /// Cases by the first exclusion that meets them.
  [[nodiscard]] const std::map<std::string, std::size_t>& excluded() const { return excluded_; }
  /// Pairs of values of two factors, and those of them that occur in no allowed case, as text.
  [[nodiscard]] std::size_t pairs() const { return pairs_.size() + impossible_.size(); }
  [[nodiscard]] const std::vector<std::string>& impossible() const { return impossible_; }

  /// Cases in which every possible pair occurs: for each that does not yet, of some cases drawn
  /// with it the one that adds most.
  [[nodiscard]] std::vector<Choice> pairwise(std::uint64_t seed) const {
    constexpr int kTries = 40;
    std::vector<bool> missing = reachable_;
    std::vector<Choice> cover;
    std::uint32_t drawn = 0;
    for (const auto& [a, b] : pairs_) {
      if (!missing[a * values_ + b]) continue;
      Choice best;
      std::size_t most = 0;
      for (int i = 0; i < kTries || most == 0; ++i) {
        Choice choice = any(seed, drawn);
        set(choice, a);
        set(choice, b);
        if (!allows(choice)) continue;
        const std::size_t added = count_of(choice, missing);
        if (added > most) best = choice;
        most = std::max(most, added);
      }
      for_each_pair(best, [&](std::size_t at) { missing[at] = false; });
      cover.push_back(std::move(best));
    }
    return cover;
  }

  /// How many possible pairs occur in `cover`: pairs() - impossible().size() of a whole one.
  [[nodiscard]] std::size_t covered_by(const std::vector<Choice>& cover) const {
    std::vector<bool> missing = reachable_;
    std::size_t covered = 0;
    for (const Choice& choice : cover)
      for_each_pair(choice, [&](std::size_t at) {
        covered += missing[at] ? 1U : 0U;
        missing[at] = false;
      });
    return covered;
  }

  /// Every allowed case.
  [[nodiscard]] std::vector<Choice> all() const {
    std::vector<Choice> chosen;
    for (Choice choice(factors_.size(), 0); !choice.empty(); next(choice))
      if (allows(choice)) chosen.push_back(choice);
    return chosen;
  }

  /// `count` allowed cases, each drawn from all, by the seed.
  [[nodiscard]] std::vector<Choice> sample(std::uint64_t seed, std::size_t count) const {
    std::vector<Choice> chosen;
    for (std::uint32_t drawn = 0; chosen.size() < count;) {
      Choice choice = any(seed, drawn);
      if (allows(choice)) chosen.push_back(std::move(choice));
    }
    return chosen;
  }

  [[nodiscard]] const std::string& value(const Choice& choice, std::string_view factor) const {
    const auto found = std::ranges::find(factors_, factor, &Factor::name);
    const auto number = static_cast<std::size_t>(found - factors_.begin());
    return found->values.at(choice.at(number));
  }

  [[nodiscard]] std::string text(const Choice& choice) const {
    std::string text;
    for (std::size_t i = 0; i < factors_.size(); ++i)
      text += (i == 0 ? "" : ", ") + factors_[i].name + " " + factors_[i].values[choice[i]];
    return text;
  }

 private:
  [[nodiscard]] bool allows(const Choice& choice) const {
    return std::ranges::none_of(
        exclusions_, [&](const Exclusion& exclusion) { return exclusion.excludes(choice); });
  }

  [[nodiscard]] Choice any(std::uint64_t seed, std::uint32_t& drawn) const {
    Choice choice;
    for (const Factor& factor : factors_)
      choice.push_back(
          random_below({.seed = seed}, drawn++, static_cast<std::uint32_t>(factor.values.size())));
    return choice;
  }

  /// Gives the factor of a value, numbered over all factors, that value.
  void set(Choice& choice, std::size_t value) const {
    const auto after = std::ranges::upper_bound(first_, value);
    const auto factor = static_cast<std::size_t>(after - first_.begin()) - 1;
    choice[factor] = value - first_[factor];
  }

  template <class Use>
  void for_each_pair(const Choice& choice, Use use) const {
    for (std::size_t i = 0; i < choice.size(); ++i)
      for (std::size_t j = i + 1; j < choice.size(); ++j)
        use((first_[i] + choice[i]) * values_ + first_[j] + choice[j]);
  }

  [[nodiscard]] std::size_t count_of(const Choice& choice, const std::vector<bool>& missing) const {
    std::size_t count = 0;
    for_each_pair(choice, [&](std::size_t at) { count += missing[at] ? 1U : 0U; });
    return count;
  }

  void look_at_all() {
    for (Choice choice(factors_.size(), 0); !choice.empty(); next(choice)) {
      const auto met = std::ranges::find_if(
          exclusions_, [&](const Exclusion& exclusion) { return exclusion.excludes(choice); });
      if (met != exclusions_.end()) {
        ++excluded_[met->name];
        continue;
      }
      ++cases_;
      for_each_pair(choice, [&](std::size_t at) { reachable_[at] = true; });
    }
    for (std::size_t i = 0; i < factors_.size(); ++i)
      for (std::size_t j = i + 1; j < factors_.size(); ++j)
        for (std::size_t v = 0; v < factors_[i].values.size(); ++v)
          for (std::size_t w = 0; w < factors_[j].values.size(); ++w) {
            const std::pair pair(first_[i] + v, first_[j] + w);
            if (reachable_[pair.first * values_ + pair.second])
              pairs_.push_back(pair);
            else
              impossible_.push_back(factors_[i].name + " " + factors_[i].values[v] + ", " +
                                    factors_[j].name + " " + factors_[j].values[w]);
          }
  }

  /// The next of all choices, allowed or not; empty after the last.
  void next(Choice& choice) const {
    for (std::size_t i = 0; i < choice.size(); ++i) {
      if (++choice[i] < factors_[i].values.size()) return;
      choice[i] = 0;
    }
    choice.clear();
  }

  std::vector<Factor> factors_;
  std::vector<Exclusion> exclusions_;
  std::vector<std::size_t> first_;  // by factor: the number of its first value over all factors
  std::size_t values_ = 0;          // of all factors
  std::vector<bool> reachable_;     // by value and value
  std::size_t cases_ = 0;
  std::map<std::string, std::size_t> excluded_;
  std::vector<std::pair<std::size_t, std::size_t>> pairs_;  // possible ones
  std::vector<std::string> impossible_;
};

}  // namespace millrace::test
