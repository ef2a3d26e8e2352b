// millrace generate: text from a checkpoint of a model that was trained on text.
#include <fmt/format.h>
#include <iostream>
#include <memory>
#include <string>

#include <nlohmann/json.hpp>

#include "cli/generate/sample.hpp"
#include "cli/subcommands.hpp"
#include "cli/train/checkpoints.hpp"
#include "cli/train/options.hpp"
#include "cli/train/refusals.hpp"
#include "cli/vocabulary.hpp"
#include "millrace/core/error.hpp"
#include "millrace/stages/layer.hpp"
#include "millrace/training/checkpoint.hpp"

namespace millrace::cli {

namespace {

struct GenerateFlags {
  std::string from, prompt, data;
  std::int64_t ranks = 1;
  std::int64_t tokens = 200;
  std::int64_t samples = 1;
  std::int64_t seed = 1;
  double temperature = 1;
  bool json = false;
};

void check(const GenerateFlags& flags) {
  constexpr std::int64_t kMost = 1'000'000;
  require_count(named("ranks"), flags.ranks, 4096);
  require_count("--tokens", flags.tokens, kMost);
  require_count("--samples", flags.samples, kMost);
  require_between("--temperature", flags.temperature, 0, kUnbounded);
  require(flags.seed >= 0, fmt::format("--seed {}: must be at least 0", flags.seed));
}

ModelSpec model_of(const Manifest& manifest, const std::string& folder) {
  require(!manifest.model.empty(), folder + ": names no model");
  ModelSpec model = parse_model(manifest.model);
  require(model.context > 0,
          fmt::format("{}: {} cannot generate text; use a gpt: model", folder, manifest.model));
  model.precision = precision_of(manifest.precision);
  return model;
}

/// In the checkpoint's run.json, which has no digest.
Vocabulary saved_vocabulary(const std::string& digits,
                            const ModelSpec& model,
                            const std::string& folder) {
  return about(folder + "/run.json", "vocabulary", [&] {
    Vocabulary vocabulary = vocabulary_of_digits(digits);
    if (vocabulary.size() > model.output_columns())
      throw DataError(fmt::format(
          "has {} bytes, the model has {} classes", vocabulary.size(), model.output_columns()));
    return vocabulary;
  });
}

/// Of the data that the model was trained on: from the checkpoint, or from --data if its contents
/// are the same.
Vocabulary vocabulary_of(const GenerateFlags& flags,
                         const Manifest& manifest,
                         const ModelSpec& model,
                         const std::string& folder) {
  auto facts = run_facts_of(folder);
  std::string name = flags.data;
  if (name.empty()) {
    if (const std::string& digits = facts["vocabulary"]; !digits.empty())
      return saved_vocabulary(digits, model, folder);
    name = facts["data"];
  }
  const std::string& saved = facts["lengths"];
  const Lengths lengths = saved.empty() ? Lengths::Fixed : lengths_called(saved);
  require(!name.empty(), folder + ": names no data; give --data");
  const Dataset train = about("--data", name, [&] {
    Dataset all = load_data(name, manifest.counters.seed, model.context, lengths).train;
    const std::optional<double> share = held_out_share(facts["validation"]);
    return share ? hold_out(all, *share).train : std::move(all);
  });
  require(train.windows.positions > 0, "--data " + name + ": is not text");
  if (!manifest.data.empty() && contents_digest(train) != manifest.data)
    throw Mismatch(fmt::format("--data {}: is not the text that {} was trained on", name, folder));
  return *train.windows.vocabulary;
}

void print(const GenerateFlags& flags,
           const std::string& prompt,
           const std::vector<std::string>& texts) {
  if (flags.json) {
    nlohmann::ordered_json document;
    document["prompt"] = prompt;
    document["samples"] = texts;
    // Bytes that are not UTF-8 are replaced, so that a parser can read it.
    std::cout << document.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace)
              << '\n';
    return;
  }
  for (std::size_t i = 0; i < texts.size(); ++i)
    std::cout << (i == 0 ? "" : "---\n") << prompt << texts[i] << '\n';
}

void generate(const GenerateFlags& flags) {
  check(flags);
  const std::string folder = newest_at(flags.from);
  const Checkpoint checkpoint(folder);
  const Manifest& manifest = checkpoint.manifest();
  const ModelSpec model = model_of(manifest, folder);
  const Vocabulary vocabulary = vocabulary_of(flags, manifest, model, folder);
  Generator generator = about(flag("ranks"), std::to_string(flags.ranks), [&] {
    return Generator(model, static_cast<int>(flags.ranks), [&](const std::string& name) {
      return checkpoint.read(name);
    });
  });
  const std::string prompt = flags.prompt.empty() ? plain_prompt(vocabulary) : flags.prompt;
  const std::vector<std::string> texts = about("--prompt", prompt, [&] {
    return continued(generator,
                     vocabulary,
                     prompt,
                     {.tokens = flags.tokens,
                      .samples = static_cast<int>(flags.samples),
                      .temperature = flags.temperature,
                      .seed = static_cast<std::uint64_t>(flags.seed)});
  });
  print(flags, prompt, texts);
}

}  // namespace

void add_generate(CLI::App& app) {
  CLI::App* subcommand =
      app.add_subcommand("generate", "Continue a text with the model of a checkpoint");
  // Shared with the callback, which runs after this function has returned.
  auto flags = std::make_shared<GenerateFlags>();
  subcommand
      ->add_option(
          "--resume", flags->from, "A checkpoint, a folder of them: the newest, or DIR/best")
      ->required();
  subcommand->add_option("--prompt", flags->prompt, "What to continue (a newline)");
  subcommand->add_option("--tokens", flags->tokens, "Tokens to add to each sample")
      ->capture_default_str();
  subcommand
      ->add_option("--samples", flags->samples, "Continuations, each with its own random numbers")
      ->capture_default_str();
  subcommand
      ->add_option("--temperature",
                   flags->temperature,
                   "Above 1 more varied, below 1 less; 0: always the likeliest")
      ->capture_default_str();
  subcommand->add_option("--seed", flags->seed, "Seed of the random numbers")
      ->capture_default_str();
  subcommand
      ->add_option(cli::flags("ranks"), flags->ranks, "Stages, a thread each; the text is the same")
      ->capture_default_str();
  subcommand->add_option("--data", flags->data, "The text of the training, if it has moved");
  subcommand->add_flag("--json", flags->json, "Print one JSON object");
  subcommand->callback([flags] { generate(*flags); });
}

}  // namespace millrace::cli
