// The table of settings of a training. Each row is a flag and configuration key of the command, a
// keyword in Python, an item of comparisons between ranks, of manifests and of reports.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "millrace/training/trainer_options.hpp"

namespace millrace {

/// What the text of a setting is: an integer, a number, any text, "true" or "false", or texts
/// separated by spaces.
enum class SettingKind : std::uint8_t { Integer, Real, Text, Switch, List };

/// Where a setting occurs. A manifest has those with a key (Setting::saved).
enum SettingPlaces : std::uint8_t {
  kInFlags = 1,     ///< flag and key of a configuration file
  kInKeywords = 2,  ///< of the Trainer in Python
  kAgreed = 4,      ///< ranks compare it before they train
  kReported = 8,    ///< in the report of a run
  kEverywhere = kInFlags | kInKeywords | kAgreed | kReported,
};

/// How a setting is written as text and read from it.
struct SettingValue {
  SettingKind kind = SettingKind::Text;
  /// All digits of a number; "none" or "" where it is unset.
  std::function<std::string(const TrainerOptions&)> get;
  /// Reads what `get` writes. Throws InvalidArgument that states the allowed values.
  std::function<void(TrainerOptions&, std::string_view)> set;
};

/// The value of the command where none is given: for some optimizers, or for all others.
struct SettingPreset {
  std::string_view value;
  std::vector<OptimizerKind> of = {};
};

/// A row of the table.
struct Setting {
  std::string_view name;        ///< keyword in Python: "batch_size"
  std::string_view flag = {};   ///< without dashes, where it is not the name: "warmup"
  std::string_view title = {};  ///< in messages, where it is not the name: "warm-up"
  std::string_view saved = {};  ///< key in a manifest; empty: not saved
  std::string_view help;        ///< one line
  SettingValue value;
  std::vector<SettingPreset> presets = {};  ///< those of some optimizers come first
  std::vector<OptimizerKind> of = {};       ///< optimizers that have it; empty: all
  std::uint8_t places = kEverywhere;
  std::string_view bare = {};  ///< value of a flag without one; empty: it needs one

  [[nodiscard]] bool is_in(SettingPlaces place) const { return (places & place) != 0; }
  /// "batch-size".
  [[nodiscard]] std::string flag_name() const;
  /// "batch size".
  [[nodiscard]] std::string title_text() const;
  /// Whether an optimizer of this kind has it.
  [[nodiscard]] bool belongs_to(OptimizerKind kind) const;
  /// Of the optimizer; empty: none.
  [[nodiscard]] std::string_view preset(OptimizerKind kind) const;
};

/// All settings, in the order in which they are set and listed. Thread-safety: immutable.
[[nodiscard]] std::span<const Setting> settings();

/// Values as text, by the name of their setting.
using SettingValues = std::map<std::string, std::string, std::less<>>;

/// Sets the values in the order of the rows. Throws InvalidParameter with the name, the value and
/// what is allowed: for an unknown name, a value out of range, and a setting that the optimizer
/// does not have.
void apply_settings(TrainerOptions& options,
                    const SettingValues& values,
                    std::span<const Setting> rows = settings());

/// The values, and the presets of those that are not given. Throws InvalidParameter for an unknown
/// optimizer.
[[nodiscard]] SettingValues with_presets(SettingValues values,
                                         std::span<const Setting> rows = settings());

/// A line "name: help" for each keyword in Python.
[[nodiscard]] std::string keyword_help(std::span<const Setting> rows = settings());

/// The options with the loss scale that they have at this precision of activations.
[[nodiscard]] TrainerOptions with_loss_scale(TrainerOptions options, DType precision);

/// Throws InvalidParameter for a number out of its range.
void check_settings(const TrainerOptions& options, std::span<const Setting> rows = settings());

/// Title and value of the settings that ranks compare; "none" where one is unset.
[[nodiscard]] std::vector<std::pair<std::string, std::string>> agreed_settings(
    const TrainerOptions& options, std::span<const Setting> rows = settings());

/// The settings of a manifest, by their keys.
[[nodiscard]] std::map<std::string, std::string> saved_settings(
    const TrainerOptions& options, std::span<const Setting> rows = settings());

/// Those of a manifest that its optimizer has, by name.
[[nodiscard]] SettingValues settings_in(const std::map<std::string, std::string>& manifest,
                                        OptimizerKind optimizer,
                                        std::span<const Setting> rows = settings());

}  // namespace millrace
