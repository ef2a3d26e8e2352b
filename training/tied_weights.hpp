// Tied weights: parameters of different layers that are one weight, wherever the cut puts them.
// They start equal, and after every step each holds the sum of all their gradients, so that equal
// updates keep them equal.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "millrace/stages/stage.hpp"
#include "millrace/training/team.hpp"

namespace millrace {

/// Thread-safety: externally synchronised; every call is a collective of the team.
class TiedWeights {
 public:
  /// A parameter hosted here; of the copies of a stage only the first speaks for the weight.
  struct Hosted {
    Parameter* parameter = nullptr;
    bool first_copy = true;
  };

  /// `groups` names parameters, the same in every member of the team. Throws InvalidArgument when a
  /// group has fewer than two names, a name does not exist or stands twice, or shapes differ.
  TiedWeights(const std::vector<std::vector<std::string>>& groups,
              std::vector<Hosted> hosted,
              Team& team);

  /// Gives every member of a group the value of the one named first.
  void share_values();

  /// Gives every member of a group the sum of the group's gradients: taken in double in the order
  /// of the names and rounded once, so that it does not depend on who hosts what. Cost: 8 bytes an
  /// element and member through the team.
  void share_gradients();

  /// Whether the parameter speaks for a weight in norms: it is not tied, or named first.
  [[nodiscard]] bool counts(const std::string& name) const;

 private:
  struct Member {
    std::vector<Hosted> here;
  };
  struct Group {
    std::size_t elements = 0;
    std::vector<Member> members;
  };

  void name_members(const std::vector<std::vector<std::string>>& groups);
  void measure(const std::vector<std::vector<std::string>>& groups);
  void collect(const Group& group, Tensor Parameter::*part);
  void spread(const Group& group, Tensor Parameter::*part, std::size_t members);

  std::vector<Hosted> hosted_;
  Team* team_;
  std::map<std::string, std::size_t> place_;  // of a tied name in its group
  std::vector<Group> groups_;
  std::vector<double> values_;  // [member][element] of the group at hand
};

}  // namespace millrace
