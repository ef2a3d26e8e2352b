// Duplicates are found while parsing: a finished document no longer shows them.
#include "training/checkpoint/strict_json.hpp"

#include <set>
#include <vector>

#include "millrace/core/error.hpp"

namespace millrace {
namespace {

using nlohmann::json;

constexpr int kDeepest = 8;

/// Looks at every event of a parse and refuses, by throwing, what must not be.
class Watch {
 public:
  explicit Watch(const std::string& what) : what_(what) {}

  void operator()(int depth, json::parse_event_t event, const json& parsed) {
    switch (event) {
      case json::parse_event_t::object_start:
        names_.emplace_back();
        [[fallthrough]];
      case json::parse_event_t::array_start:
        if (depth >= kDeepest)
          throw DataError(what_ + ": is nested deeper than " + std::to_string(kDeepest) +
                          " levels");
        break;
      case json::parse_event_t::object_end:
        names_.pop_back();
        break;
      case json::parse_event_t::key: {
        const auto& name = parsed.get_ref<const std::string&>();
        if (!names_.back().insert(name).second)
          throw DataError(what_ + ": names '" + name.substr(0, 100) + "' twice");
        break;
      }
      case json::parse_event_t::array_end:
      case json::parse_event_t::value:
        break;
    }
  }

 private:
  const std::string& what_;
  std::vector<std::set<std::string>> names_;  // of the objects that are open
};

}  // namespace

json parse_strictly(std::string_view text, const std::string& what) {
  Watch watch(what);
  const auto look = [&](int depth, json::parse_event_t event, json& parsed) {
    watch(depth, event, parsed);
    return true;
  };
  try {
    return json::parse(text.begin(), text.end(), look);
  } catch (const json::parse_error& error) {
    throw DataError(what + ": is not JSON at byte " +
                    std::to_string(error.byte == 0 ? 0 : error.byte - 1));
  } catch (const json::exception&) {
    throw DataError(what + ": has a number that is too large");
  }
}

}  // namespace millrace
