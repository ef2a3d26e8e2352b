// Duplicates are found while parsing: a finished document no longer shows them.
#include "training/checkpoint/strict_json.hpp"

#include <set>
#include <span>
#include <vector>

#include "millrace/core/error.hpp"
#include "millrace/training/state.hpp"

namespace millrace {
namespace {

using nlohmann::json;

constexpr std::size_t kDeepest = 8;

/// Counts, where asked, how often two names are compared.
struct CountedLess {
  std::uint64_t* count;

  bool operator()(const std::string& one, const std::string& other) const {
    if (count != nullptr) ++*count;
    return one < other;
  }
};

/// Looks at every event of a parse and rejects, by throwing, what must not be. The document is made
/// by a second parse: the parser that makes it while it calls back looks at all members of an
/// object again behind each of them.
class Watch final : public nlohmann::json_sax<json> {
 public:
  Watch(const std::string& what, std::uint64_t* comparisons) : what_(what), less_{comparisons} {}

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }

  bool start_object(std::size_t) override { return open(); }
  bool start_array(std::size_t) override { return open(); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(string_t& name) override {
    if (!names_.back().insert(name).second)
      throw DataError(what_ + ": names '" + name.substr(0, 100) + "' twice");
    return true;
  }

  bool parse_error(std::size_t byte, const std::string&, const json::exception& error) override {
    if (dynamic_cast<const json::parse_error*>(&error) == nullptr)
      throw DataError(what_ + ": has a number that is too large");
    throw DataError(what_ + ": is not JSON at byte " + std::to_string(byte == 0 ? 0 : byte - 1));
  }

 private:
  bool open() {
    if (names_.size() >= kDeepest)
      throw DataError(what_ + ": is nested deeper than " + std::to_string(kDeepest) + " levels");
    names_.emplace_back(less_);
    return true;
  }

  bool close() {
    names_.pop_back();
    return true;
  }

  const std::string& what_;
  CountedLess less_;
  std::vector<std::set<std::string, CountedLess>>
      names_;  // of the objects and arrays that are open
};

constexpr std::string_view kHex = "0123456789abcdef";
// What follows the digits: quote, newline, brace, newline.
constexpr std::string_view kEnd = "\"\n}\n";

std::string_view digits_in(std::string_view text) {
  return text.substr(text.size() - kEnd.size() - kSealDigits, kSealDigits);
}

/// Of the text, whose end is right, with zeros for the digits of its hash.
std::string seal_of(std::string_view text) {
  std::string rest(text);
  rest.replace(text.size() - kEnd.size() - kSealDigits, kSealDigits, kSealDigits, '0');
  return bytes_digest(std::as_bytes(std::span(rest)));
}

}  // namespace

std::string sealed(nlohmann::ordered_json document, std::string_view name) {
  document[std::string(name)] = std::string(kSealDigits, '0');
  std::string text = document.dump(1) + "\n";
  text.replace(text.size() - kEnd.size() - kSealDigits, kSealDigits, seal_of(text));
  return text;
}

bool ends_sealed(std::string_view text) {
  return text.size() >= kEnd.size() + kSealDigits && text.ends_with(kEnd) &&
         digits_in(text).find_first_not_of(kHex) == text.npos;
}

void check_seal(std::string_view text, const std::string& file, std::string_view kind) {
  if (text.size() < kEnd.size() + kSealDigits || !text.ends_with(kEnd))
    throw DataError(file + ": is cut off, or no " + std::string(kind) + " of a checkpoint");
  const std::string_view said = digits_in(text);
  const std::string found = seal_of(text);
  if (said != found)
    throw DataError(file + ": is damaged: its hash is " + found + ", but it says " +
                    std::string(said));
}

json parse_strictly(std::string_view text, const std::string& what, std::uint64_t* comparisons) {
  Watch watch(what, comparisons);
  json::sax_parse(text.begin(), text.end(), &watch);
  return json::parse(text.begin(), text.end());
}

}  // namespace millrace
