// Evaluates the closed forms as `millrace list` prints them: "(p-1)(F+B)/v for m >= p", and the
// conditions that they state.
#pragma once

#include <algorithm>
#include <cctype>
#include <cmath>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

namespace millrace::testing_plan {

using Values = std::map<std::string, double>;

/// Sums of products; what stands side by side is multiplied, and / divides all before it.
class Formula {
 public:
  Formula(std::string text, const Values& values) : text_(std::move(text)), values_(values) {}

  /// Throws std::runtime_error for text that is not a formula.
  double value() {
    const double result = sum();
    if (at_ != text_.size()) fail();
    return result;
  }

 private:
  [[noreturn]] void fail() const {
    throw std::runtime_error("'" + text_ + "' is not a formula: character " + std::to_string(at_));
  }

  char next() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
    return at_ < text_.size() ? text_[at_] : '\0';
  }

  void take(char wanted) {
    if (next() != wanted) fail();
    ++at_;
  }

  double sum() {
    double result = product();
    while (next() == '+' || next() == '-') {
      const bool plus = text_[at_++] == '+';
      result += plus ? product() : -product();
    }
    return result;
  }

  double product() {
    double result = factor();
    while (true) {
      if (next() == '/') {
        ++at_;
        result /= factor();
      } else if (next() == '(' || std::isalnum(static_cast<unsigned char>(next())) != 0) {
        result *= factor();
      } else {
        return result;
      }
    }
  }

  double factor() {
    if (next() == '(') {
      ++at_;
      const double result = sum();
      take(')');
      return result;
    }
    if (std::isdigit(static_cast<unsigned char>(next())) != 0) {
      std::size_t length = 0;
      const double number = std::stod(text_.substr(at_), &length);
      at_ += length;
      return number;
    }
    for (const char* const name : {"min", "max", "ceil", "floor"})
      if (text_.compare(at_, std::string(name).size(), name) == 0) return call(name);
    for (const std::string& name : {text_.substr(at_, 2), text_.substr(at_, 1)})
      if (const auto found = values_.find(name); found != values_.end()) {
        at_ += name.size();
        return found->second;
      }
    fail();
  }

  double call(const std::string& name) {
    at_ += name.size();
    take('(');
    double result = sum();
    if (name == "ceil") result = std::ceil(result - 1e-9);
    if (name == "floor") result = std::floor(result + 1e-9);
    while (next() == ',') {
      ++at_;
      const double other = sum();
      result = name == "min" ? std::min(result, other) : std::max(result, other);
    }
    take(')');
    return result;
  }

  std::string text_;
  const Values& values_;
  std::size_t at_ = 0;
};

/// The parts of a text between commas that stand in no brackets, without blanks round them.
inline std::vector<std::string> between_commas(const std::string& text) {
  std::vector<std::string> parts(1);
  int depth = 0;
  for (const char byte : text) {
    depth += byte == '(' ? 1 : byte == ')' ? -1 : 0;
    if (byte == ',' && depth == 0)
      parts.emplace_back();
    else if (byte != ' ' || !parts.back().empty())
      parts.back() += byte;
  }
  return parts;
}

/// "W <= F <= I", "F=I=W", "p even", "q divides p", "3 does not divide p". Throws
/// std::runtime_error for anything else.
inline bool holds(const std::string& condition, const Values& values) {
  const auto whole = [](double number) { return std::abs(number - std::round(number)) < 1e-9; };
  if (condition.ends_with(" even"))
    return whole(Formula(condition.substr(0, condition.size() - 5), values).value() / 2);
  if (condition.ends_with(" odd"))
    return !holds(condition.substr(0, condition.size() - 3) + "even", values);
  if (const auto negated = condition.find(" does not divide "); negated != std::string::npos)
    return !holds(condition.substr(0, negated) + " divides " + condition.substr(negated + 17),
                  values);
  if (const auto divides = condition.find(" divides "); divides != std::string::npos)
    return whole(Formula(condition.substr(divides + 9), values).value() /
                 Formula(condition.substr(0, divides), values).value());
  bool all = true;
  std::size_t from = 0;
  double left = 0;
  std::string before;
  while (true) {
    const std::size_t end = std::min(condition.find_first_of("<>=", from), condition.size());
    const double right =
        Formula(condition.substr(from, condition.find_last_not_of(' ', end - 1) + 1 - from), values)
            .value();
    if (before == "<=") all = all && left <= right + 1e-9;
    if (before == ">=") all = all && left >= right - 1e-9;
    if (before == "=") all = all && std::abs(left - right) < 1e-9;
    left = right;
    if (end == condition.size()) break;
    const std::size_t length = condition[end] == '=' ? 1 : 2;
    before = condition.substr(end, length);
    from = end + length;
  }
  if (before.empty()) throw std::runtime_error("'" + condition + "' is not a condition");
  return all;
}

/// A form with its domain: "FORM for CONDITION, ... , name = FORM, remark".
struct Form {
  std::string formula;
  std::vector<std::string> conditions;
  std::vector<std::pair<std::string, std::string>> names;  // what letters of its own mean
};

inline Form form_of(const std::string& text) {
  Form form;
  std::string head = text, tail;
  for (const std::string& word : {std::string(" for "), std::string(" at ")})
    if (const auto found = text.find(word); found != std::string::npos && found < head.size()) {
      head = text.substr(0, found);
      tail = text.substr(found + word.size());
    }
  auto parts = between_commas(head);
  form.formula = parts.front();
  parts.erase(parts.begin());
  if (!tail.empty())
    for (const std::string& part : between_commas(tail)) parts.push_back(part);
  for (const std::string& part : parts)
    if ((part[0] == 'b' || part[0] == 'c') && part.compare(1, 3, " = ") == 0)
      form.names.emplace_back(part.substr(0, 1), part.substr(4));
    else
      form.conditions.push_back(part);
  return form;
}

}  // namespace millrace::testing_plan
