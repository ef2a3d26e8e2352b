// Decoder-only transformers by their text.
#include <array>
#include <utility>

#include "core/edit_distance.hpp"
#include "stages/models/text.hpp"

namespace millrace {
namespace {

struct GptOptions {
  std::int64_t layers = 0;
  std::int64_t d = 0;
  std::int64_t heads = 0;
  std::int64_t context = 0;
  std::int64_t kv = 0;  // 0: as many as heads
  std::int64_t vocabulary = 256;
  double rate = 0;
  std::string_view mlp = "gelu";
  std::string_view norm = "layer";
  std::string_view pos = "learned";
  std::string_view tied = "no";
};

struct NumberOption {
  std::string_view name;
  std::int64_t GptOptions::*number;
};

struct WordOption {
  std::string_view name;
  std::string_view GptOptions::*word;
  std::array<std::string_view, 2> allowed;
};

constexpr std::array kNumbers{NumberOption{"layers", &GptOptions::layers},
                              NumberOption{"d", &GptOptions::d},
                              NumberOption{"heads", &GptOptions::heads},
                              NumberOption{"context", &GptOptions::context},
                              NumberOption{"kv", &GptOptions::kv},
                              NumberOption{"vocabulary", &GptOptions::vocabulary}};
constexpr std::array kWords{WordOption{"mlp", &GptOptions::mlp, {"gelu", "swiglu"}},
                            WordOption{"norm", &GptOptions::norm, {"layer", "rms"}},
                            WordOption{"pos", &GptOptions::pos, {"learned", "rotary"}},
                            WordOption{"tied", &GptOptions::tied, {"no", "yes"}}};

[[noreturn]] void refuse_option(const ModelText& text, std::string_view name) {
  std::string_view nearest = "dropout";
  const auto compare = [&](std::string_view known) {
    if (edit_distance(name, known) < edit_distance(name, nearest)) nearest = known;
  };
  for (const NumberOption& option : kNumbers) compare(option.name);
  for (const WordOption& option : kWords) compare(option.name);
  text.refuse("unknown option \"" + std::string(name) + "\"; the nearest is " +
              std::string(nearest));
}

std::string_view read_word(const ModelText& text,
                           const WordOption& option,
                           std::string_view value) {
  for (const std::string_view allowed : option.allowed)
    if (value == allowed) return allowed;
  text.refuse(std::string(option.name) + " \"" + std::string(value) + "\" is neither " +
              std::string(option.allowed[0]) + " nor " + std::string(option.allowed[1]));
}

void read_option(const ModelText& text, std::string_view given, GptOptions& options) {
  if (const auto rate = read_dropout(text, given)) {
    options.rate = *rate;
    return;
  }
  const std::size_t equals = given.find('=');
  const std::string_view name = given.substr(0, equals);
  const std::string_view value =
      equals == std::string_view::npos ? std::string_view() : given.substr(equals + 1);
  for (const NumberOption& option : kNumbers)
    if (name == option.name) {
      options.*option.number = read_width(text, value);
      return;
    }
  for (const WordOption& option : kWords)
    if (name == option.name) {
      options.*option.word = read_word(text, option, value);
      return;
    }
  refuse_option(text, name);
}

void check(const ModelText& text, GptOptions& options) {
  for (const NumberOption& option : kNumbers)
    if (options.*option.number == 0 && option.name != "kv")
      text.refuse(std::string(option.name) + "=N is missing");
  if (options.kv == 0) options.kv = options.heads;
  if (options.d % options.heads != 0)
    text.refuse("d must be a multiple of heads, got " + std::to_string(options.d) + " and " +
                std::to_string(options.heads));
  if (options.heads % options.kv != 0)
    text.refuse("heads must be a multiple of kv, got " + std::to_string(options.heads) + " and " +
                std::to_string(options.kv));
  if (options.pos == "rotary" && options.d / options.heads % 2 != 0)
    text.refuse("rotary positions need heads of an even number of columns, got " +
                std::to_string(options.d / options.heads));
}

/// The layers of a transformer, one after the other.
class GptLayers {
 public:
  explicit GptLayers(const GptOptions& options) : options_(options) {}

  ModelSpec build() && {
    model_.inputs = {{DType::I32, {kSamples, kPositions}, false}};
    model_.context = options_.context;
    add({.kind = "embedding",
         .settings = {{"rows", options_.vocabulary}, {"columns", options_.d}},
         .keep_f32 = true});
    if (options_.pos == "learned")
      add({.kind = "positions", .settings = {{"context", options_.context}}, .keep_f32 = true});
    add_dropout();
    for (std::int64_t i = 0; i < options_.layers; ++i) {
      add_branch([&] { add_attention(); });
      add_branch([&] { add_perceptron(); });
    }
    mark_cut();
    add_norm();
    add({"unembedding", {{"words", options_.vocabulary}}});
    if (options_.tied == "yes")
      model_.tied = {
          {"layers.0.weight", "layers." + std::to_string(model_.layers.size() - 1) + ".weight"}};
    return std::move(model_);
  }

 private:
  void add(LayerSpec layer) { model_.layers.push_back(std::move(layer)); }
  void add_linear(std::int64_t out, const char* activation = "none") {
    add({"linear", {{"out", out}, {"activation", activation}}});
  }
  void add_norm() {
    add({.kind = options_.norm == "rms" ? "rms_norm" : "layer_norm", .keep_f32 = true});
  }
  void add_dropout() {
    if (options_.rate > 0) add({"dropout", {{"rate", options_.rate}}});
  }

  [[nodiscard]] LayerValue last() const { return {.layer = model_.layer_count() - 1}; }

  /// Here one tensor alone crosses.
  void mark_cut() { model_.cut_points.push_back(model_.layer_count()); }

  /// A norm and what `body` adds after it, added to the input.
  template <class Body>
  void add_branch(const Body& body) {
    mark_cut();
    const LayerValue before = last();
    add_norm();
    body();
    add_dropout();
    add({"add", {}, {before, last()}});
  }

  void add_attention() {
    const std::int64_t head = options_.d / options_.heads;
    add_linear(options_.d + 2 * options_.kv * head);
    add({"attention",
         {{"heads", options_.heads},
          {"kv_heads", options_.kv},
          {"rotary", options_.pos == "rotary" ? 10000.0 : 0.0}}});
    add_linear(options_.d);
  }

  void add_perceptron() {
    if (options_.mlp == "gelu") {
      add_linear(4 * options_.d, "gelu");
    } else {
      // Two thirds of 4 d, so that it has as many weights (Shazeer, arXiv 2002.05202, section 2).
      constexpr std::int64_t kStep = 64;
      add_linear(2 * ((8 * options_.d / 3 + kStep - 1) / kStep * kStep));
      add({"swiglu"});
    }
    add_linear(options_.d);
  }

  GptOptions options_;
  ModelSpec model_;
};

}  // namespace

ModelSpec read_gpt(const ModelText& text, std::span<const std::string_view> parts) {
  GptOptions options;
  for (const std::string_view part : parts) read_option(text, part, options);
  check(text, options);
  return GptLayers(options).build();
}

}  // namespace millrace
