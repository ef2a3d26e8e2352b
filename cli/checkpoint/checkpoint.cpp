// millrace checkpoint: lists, verifies, shows, compares and exports checkpoints.
#include "millrace/training/checkpoint.hpp"

#include <cmath>
#include <fmt/format.h>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/files.hpp"
#include "cli/numbers.hpp"
#include "cli/subcommands.hpp"
#include "cli/train/checkpoints.hpp"
#include "millrace/core/error.hpp"
#include "millrace/training/state.hpp"

namespace millrace::cli {

namespace {

std::uint64_t bytes_in(const Manifest& manifest) {
  std::uint64_t bytes = 0;
  for (const CheckpointShard& shard : manifest.shards) bytes += shard.bytes;
  return bytes;
}

/// Of an update that is not finished, if there is one.
std::string begun_in(const TrainingCounters& counters) {
  const std::int64_t count = counters.partial.micro_batches;
  if (count == 0) return {};
  return fmt::format(", {} micro-batch{} of the next update", count, count == 1 ? "" : "es");
}

std::string weights_hash_of(const Manifest& manifest) {
  std::map<std::string, std::string> digests;
  for (const CheckpointShard& shard : manifest.shards)
    for (const CheckpointTensor& tensor : shard.tensors)
      if (tensor.part == "value") digests[tensor.name] = tensor.digest;
  return combine_digests(digests);
}

/// One line each, damaged ones included.
void list(const std::string& root) {
  const auto places = find_checkpoints(root);
  if (places.empty()) throw DataError(root + ": has no checkpoint");
  bool damaged = false;
  std::optional<std::int64_t> best;  // its step, by the newest manifest
  for (const CheckpointPlace& place : places) {
    try {
      const Manifest manifest = read_manifest_of(place.folder);
      static_cast<void>(run_facts_of(place.folder));
      std::cout << place.folder << "  " << manifest.counters.global_step << " updates, epoch "
                << manifest.counters.position.epoch + 1 << begun_in(manifest.counters) << ", "
                << bytes_in(manifest) << " bytes, weights " << weights_hash_of(manifest);
      const ValidationRecord& record = manifest.counters.validation;
      if (!best) best = record.best_step;
      if (*best > 0 && *best == place.step && place.micro_batches == 0)
        std::cout << fmt::format(", best by {}: {:.6g}", name_of(record.metric), record.best);
      std::cout << '\n';
    } catch (const DataError& error) {
      std::cout << place.folder << "  damaged: " << error.what() << '\n';
      damaged = true;
    }
  }
  if (damaged) throw DataError(root + ": has a damaged checkpoint");
}

void verify(const std::string& path) {
  const std::string folder = newest_at(path);
  const Checkpoint checkpoint(folder);
  std::cout << folder << ": " << checkpoint.manifest().shards.size() << " files, "
            << bytes_in(checkpoint.manifest()) << " bytes, every hash holds\n";
}

void show(const std::string& path) {
  const std::string folder = newest_at(path);
  const Manifest manifest = read_manifest_of(folder);
  const TrainingCounters& counters = manifest.counters;
  std::cout << folder << '\n'
            << "model       " << manifest.model << '\n'
            << "precision   " << manifest.precision << '\n'
            << "optimizer   " << manifest.optimizer << '\n'
            << "data        " << (manifest.data.empty() ? "not known" : manifest.data) << '\n'
            << "seed        " << counters.seed << '\n'
            << "updates     " << counters.global_step << " of " << counters.mini_batches
            << " mini-batches\n"
            << "continues   epoch " << counters.position.epoch + 1 << ", mini-batch "
            << counters.position.batch + 1 << begun_in(counters) << '\n'
            << "loss scale  " << exact(counters.loss_scale.value) << '\n'
            << "weights     " << weights_hash_of(manifest) << '\n';
  if (const ValidationRecord& record = counters.validation; record.step > 0)
    std::cout << fmt::format(
        "validation  {} of step {}; best {:.6g} of step {}; {} without better\n",
        name_of(record.metric),
        record.step,
        record.best,
        record.best_step,
        record.without_improvement);
  for (const auto& [name, value] : manifest.settings)
    std::cout << "  " << name << ": " << value << '\n';
  for (const CheckpointShard& shard : manifest.shards)
    for (const CheckpointTensor& tensor : shard.tensors)
      std::cout << "  " << tensor_key(tensor) << "  " << name_of(tensor.dtype) << " "
                << to_string(tensor.dims) << "  " << tensor.digest << '\n';
  for (const auto& [name, value] : run_facts_of(folder))
    std::cout << "  run, " << name << ": " << value << '\n';
}

/// The largest difference of two tensors, where both are f32 of one shape.
std::string distance(const SafetensorsEntry& one, const SafetensorsEntry& other) {
  if (one.dtype() != DType::F32 || other.dtype() != DType::F32 || one.extents != other.extents)
    return "of another type or shape";
  const Tensor left = one.tensor(), right = other.tensor();
  double largest = 0;
  for (std::size_t i = 0; i < left.as<float>().size(); ++i)
    largest = std::max(largest,
                       std::abs(static_cast<double>(left.as<float>()[i]) -
                                static_cast<double>(right.as<float>()[i])));
  return "largest difference " + exact(largest);
}

std::map<std::string, std::string> facts_of(const Manifest& manifest) {
  std::map<std::string, std::string> facts = manifest.settings;
  facts["model"] = manifest.model;
  facts["precision"] = manifest.precision;
  facts["optimizer"] = manifest.optimizer;
  facts["data"] = manifest.data;
  facts["seed"] = std::to_string(manifest.counters.seed);
  facts["updates"] = std::to_string(manifest.counters.global_step);
  facts["mini-batches"] = std::to_string(manifest.counters.mini_batches);
  facts["micro-batches of the next update"] =
      std::to_string(manifest.counters.partial.micro_batches);
  return facts;
}

/// Prints the differences; true if there are any.
bool differ(const std::string& left, const std::string& right) {
  const Checkpoint one(newest_at(left)), other(newest_at(right));
  bool any = false;
  const auto print = [&](const std::string& line) {
    std::cout << line << '\n';
    any = true;
  };
  const auto theirs = facts_of(other.manifest());
  for (const auto& [name, value] : facts_of(one.manifest())) {
    const auto found = theirs.find(name);
    const std::string second = found == theirs.end() ? "nothing" : found->second;
    if (second != value) print(fmt::format("{}: {}, {}", name, value, second));
  }
  for (const auto& [here, there, missing] : {std::tuple(&one, &other, " is only in the first"),
                                             std::tuple(&other, &one, " is only in the second")})
    for (const CheckpointShard& shard : here->manifest().shards)
      for (const CheckpointTensor& tensor : shard.tensors) {
        const SafetensorsEntry* mine = here->find(tensor.name, tensor.part);
        const SafetensorsEntry* second = there->find(tensor.name, tensor.part);
        if (second == nullptr)
          print(tensor_key(tensor) + missing);
        else if (here == &one && !std::ranges::equal(mine->bytes, second->bytes))
          print(tensor_key(tensor) + ": " + distance(*mine, *second));
      }
  return any;
}

void export_weights(const std::string& path, const std::string& file) {
  require_writable("--output", file);
  const std::string folder = newest_at(path);
  const Checkpoint checkpoint(folder);
  SafetensorsMetadata metadata{{"model", checkpoint.manifest().model}};
  if (const std::string divisor = run_facts_of(folder)[kFeatureDivisor]; !divisor.empty())
    metadata[kFeatureDivisor] = divisor;
  std::vector<SafetensorsPlace> places;
  for (const CheckpointShard& shard : checkpoint.manifest().shards)
    for (const CheckpointTensor& tensor : shard.tensors)
      if (tensor.part == "value") places.push_back({tensor.name, tensor.dtype, tensor.dims});
  SafetensorsImage image(places, metadata);
  for (const SafetensorsPlace& place : places) image.fill(place.name, checkpoint.read(place.name));
  const auto bytes = image.bytes();
  write_files({{"--output", file, {reinterpret_cast<const char*>(bytes.data()), bytes.size()}}});
}

struct CheckpointPaths {
  std::string one, other, output;
};

}  // namespace

void add_checkpoint(CLI::App& app) {
  CLI::App* subcommand =
      app.add_subcommand("checkpoint", "List, verify, show, compare and export checkpoints");
  subcommand->require_subcommand(1);
  auto paths = std::make_shared<CheckpointPaths>();
  const auto add = [&](const char* name, const char* what, auto work) {
    CLI::App* part = subcommand->add_subcommand(name, what);
    part->add_option(
            "folder", paths->one, "A checkpoint, the folder of --save: its newest, or DIR/best")
        ->required();
    part->callback([paths, work] { work(*paths); });
    return part;
  };
  add("ls", "The checkpoints of a folder, newest first", [](const auto& p) { list(p.one); });
  add("verify", "Compare every byte with its hash", [](const auto& p) { verify(p.one); });
  add("show", "The contents of the manifest", [](const auto& p) { show(p.one); });
  add("diff",
      "The differences between two; exit code 1 if there are any",
      [](const auto& p) {
        if (differ(p.one, p.other)) throw ExitCode{1};
      })
      ->add_option("other", paths->other, "The other one")
      ->required();
  add("export",
      "One safetensors file of the weights",
      [](const auto& p) { export_weights(p.one, p.output); })
      ->add_option("--output", paths->output, "The file, for train --weights")
      ->required();
}

}  // namespace millrace::cli
