// A row that only this test adds to the table of settings is in every place that reads the table.
#include "cli/train/settings.hpp"

#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "millrace/core/error.hpp"
#include "training/setting_values.hpp"

namespace millrace::test {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::Not;
using testing::Pair;
using testing::ThrowsMessage;

/// The table and a row more.
std::vector<Setting> with_dummy() {
  std::vector<Setting> rows(settings().begin(), settings().end());
  rows.push_back({.name = "save_apart",
                  .saved = "save_apart",
                  .help = "Whether training continues while files are written",
                  .value = values::yes_or_no([](auto& o) -> auto& { return o.save.background; })});
  return rows;
}

/// The settings that `arguments` give to a command with these rows.
SettingValues given(const std::vector<Setting>& rows,
                    std::string arguments,
                    std::string file = "") {
  CLI::App app("Trains", "train");
  cli::add_setting_flags(app, rows);
  app.parse(std::move(arguments));
  if (!file.empty()) cli::read_config(app, file);
  return cli::given_settings(app, rows);
}

TEST(Settings, AnotherRow_IsComparedSavedAndReported) {
  const std::vector<Setting> rows = with_dummy();
  TrainerOptions options;
  EXPECT_THAT(agreed_settings(options, rows), Contains(Pair("save apart", "true")));
  EXPECT_THAT(agreed_settings(options), Not(Contains(Pair("save apart", "true"))));
  EXPECT_THAT(saved_settings(options, rows), Contains(Pair("save_apart", "true")));
  EXPECT_EQ(cli::settings_json(options, rows)["save_apart"], true);
  apply_settings(options, settings_in({{"save_apart", "false"}}, OptimizerKind::Adam, rows), rows);
  EXPECT_FALSE(options.save.background);
}

TEST(Settings, AnotherRow_IsFlagKeyAndKeyword) {
  const std::vector<Setting> rows = with_dummy();
  EXPECT_THAT(given(rows, "--save-apart false"), Contains(Pair("save_apart", "false")));
  CLI::App app("Trains", "train");
  cli::add_setting_flags(app, rows);
  EXPECT_THAT(app.help(), HasSubstr("--save-apart TEXT"));
  EXPECT_THAT(app.help(), HasSubstr("Whether training continues while files are written"));
  EXPECT_THAT(keyword_help(rows), HasSubstr("save_apart: Whether training continues"));

  const std::string file =
      (std::filesystem::temp_directory_path() / "millrace_settings_test.toml").string();
  std::ofstream(file) << "save-apart = false\nlr = 0.5\n";
  const SettingValues values = given(rows, "--lr 0.25", file);
  std::filesystem::remove(file);
  EXPECT_THAT(values, Contains(Pair("save_apart", "false")));
  EXPECT_THAT(values, Contains(Pair("lr", "0.25"))) << "the command line overrides the file";
}

TEST(Settings, Text_IsReadAsWritten) {
  TrainerOptions options;
  options.step.clip_norm = 0.1 + 0.2;
  options.step.tied = {{"a", "b"}, {"c", "d"}};
  options.save.every_time = std::chrono::seconds(30);
  options.run.recompute = {.kind = RecomputeKind::Every, .every = 4};
  TrainerOptions read;
  for (const Setting& row : settings()) {
    const std::string text = row.value.get(options);
    if (row.name == "loss_scale") continue;  // unset, which has no text
    row.value.set(read, text);
    EXPECT_EQ(row.value.get(read), text) << row.name;
  }
  EXPECT_EQ(read.step.clip_norm, options.step.clip_norm);
  EXPECT_EQ(read.step.tied, options.step.tied);
}

TEST(Settings, WrongNameOrValue_IsRejected) {
  const auto apply = [](SettingValues values) {
    return [values] {
      TrainerOptions options;
      apply_settings(options, values);
    };
  };
  EXPECT_THAT(apply({{"clip_nrm", "1"}}),
              ThrowsMessage<InvalidArgument>("clip_nrm: unknown setting; did you mean clip_norm?"));
  EXPECT_THAT(apply({{"clip_norm", "-1"}}),
              ThrowsMessage<InvalidArgument>("clip_norm -1: must be above 0, or none"));
  EXPECT_THAT(apply({{"epochs", "1.5"}}),
              ThrowsMessage<InvalidArgument>("epochs 1.5: must be from 0 to 1000000000"));
  EXPECT_THAT(apply({{"beta1", "0.5"}, {"optimizer", "sgd"}}),
              ThrowsMessage<InvalidArgument>(
                  HasSubstr("sgd has no such setting; those that have it are adam, adamw")));
}

TEST(Settings, Presets_FollowTheOptimizer) {
  EXPECT_THAT(with_presets({}), Contains(Pair("lr", "3e-3")));
  EXPECT_THAT(with_presets({{"optimizer", "lion"}}), Contains(Pair("lr", "3e-4")));
  EXPECT_THAT(with_presets({{"optimizer", "sgd"}}), Not(Contains(testing::Key("beta1"))));
  EXPECT_THAT(with_presets({{"lr", "1"}}), Contains(Pair("lr", "1")));
}

}  // namespace
}  // namespace millrace::test
