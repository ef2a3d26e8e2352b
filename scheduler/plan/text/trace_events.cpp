// A receiver of the JSON library's tokens, which knows how deep it is; see trace_events.hpp.
#include "plan/text/trace_events.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "plan/text/json_fault.hpp"

namespace millrace::plan {

namespace {

using nlohmann::json;

constexpr std::array<std::string_view, 7> kMembers = {
    "ph", "name", "cat", "pid", "tid", "ts", "dur"};
constexpr std::array<std::string_view, 2> kArguments = {"action", "arrived"};

class EventReceiver : public nlohmann::json_sax<json> {
 public:
  EventReceiver(std::string_view text, const std::function<std::string(const json&)>& use)
      : text_(text), use_(use) {}

  ReadTrace read() {
    json::sax_parse(text_.begin(), text_.end(), this);
    if (!result_.fault && !found_)
      result_.fault = Diagnostic{1, 1, "there is no list of trace events"};
    return std::move(result_);
  }

  bool null() override { return value(nullptr); }
  bool boolean(bool given) override { return value(given); }
  bool number_integer(number_integer_t given) override { return value(given); }
  bool number_unsigned(number_unsigned_t given) override { return value(given); }
  bool number_float(number_float_t given, const string_t&) override { return value(given); }
  bool string(string_t& given) override { return value(std::move(given)); }
  bool binary(binary_t&) override { return true; }

  bool start_object(std::size_t) override {
    if (depth_ == 0) in_object_ = true;
    if (in_list() && depth_ == list_) event_ = json::object();
    ++depth_;
    return true;
  }

  bool key(string_t& name) override {
    if (in_list() && depth_ == list_ + 1) in_arguments_ = name == "args";
    key_ = std::move(name);
    return true;
  }

  bool end_object() override {
    --depth_;
    if (!in_list() || depth_ != list_) return true;
    ++result_.events;
    std::string fault = use_(event_);
    if (!fault.empty()) result_.fault = Diagnostic{1, 1, std::move(fault)};
    return !result_.fault;
  }

  bool start_array(std::size_t) override {
    const bool is_list = depth_ == 0 || (depth_ == 1 && in_object_ && key_ == "traceEvents");
    ++depth_;
    if (!is_list) return true;
    found_ = true;
    list_ = depth_;
    return true;
  }

  bool end_array() override {
    --depth_;
    if (depth_ < list_) list_ = 0;
    return true;
  }

  bool parse_error(std::size_t position,
                   const std::string&,
                   const nlohmann::detail::exception& error) override {
    constexpr int kNumberTooLarge = 406;
    if (error.id == kNumberTooLarge) {
      result_.fault = Diagnostic{1, 1, "a number in the file is too large"};
    } else if (found_ && position > text_.size()) {
      result_.cut_off = true;
    } else {
      result_.fault = at_offset(text_, position == 0 ? 0 : position - 1, "this is not JSON");
    }
    return false;
  }

 private:
  [[nodiscard]] bool in_list() const { return list_ > 0; }

  bool value(json given) {
    if (!in_list()) return true;
    const auto wanted = [this](const auto& names) {
      return std::ranges::find(names, std::string_view(key_)) != names.end();
    };
    if (depth_ == list_ + 1 && wanted(kMembers)) event_[key_] = std::move(given);
    if (depth_ == list_ + 2 && in_arguments_ && wanted(kArguments))
      event_["args"][key_] = std::move(given);
    return true;
  }

  std::string_view text_;
  const std::function<std::string(const json&)>& use_;
  ReadTrace result_;
  json event_;
  std::string key_;         // the latest, at any depth
  std::size_t depth_ = 0;   // lists and objects that are open
  std::size_t list_ = 0;    // depth inside the list of events; 0: outside
  bool found_ = false;      // there is such a list
  bool in_object_ = false;  // the document is an object
  bool in_arguments_ = false;
};

}  // namespace

ReadTrace read_events(std::string_view text, const std::function<std::string(const json&)>& use) {
  return EventReceiver(text, use).read();
}

}  // namespace millrace::plan
