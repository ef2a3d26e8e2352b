// The folder of checkpoints, manifests and the rules of validation, for a training whose parameters
// are Python's: see millrace/torch/checkpoint.py and fit.py.
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include "millrace/core/error.hpp"
#include "millrace/training/checkpoint.hpp"
#include "millrace/training/reports.hpp"
#include "millrace/training/state.hpp"
#include "module/bindings.hpp"
#include "training/checkpoint/folder.hpp"
#include "training/checkpoint/run_facts.hpp"

namespace millrace::python {

namespace {

using namespace py::literals;

/// A CheckpointFolder of the local file system.
class Folder {
 public:
  explicit Folder(const std::string& root) : folder_(whole_path(root), files_) {}

  std::string lock(const std::string& job, double seconds) {
    const py::gil_scoped_release unlocked;
    folder_.make();
    return folder_.lock(job, std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000)));
  }

  void write(const std::string& path, const py::bytes& bytes) {
    const std::string_view text = bytes;
    const py::gil_scoped_release unlocked;
    write_durably(files_, path, std::as_bytes(std::span(text)));
  }

  std::string commit(std::int64_t step,
                     const std::string& manifest,
                     const Program& program,
                     int processes,
                     const std::map<std::string, std::string>& facts) {
    const py::gil_scoped_release unlocked;
    return folder_.commit({.step = step}, manifest, write_run(program, processes, facts));
  }

  void retire(int newest, const std::string& loaded, bool best) {
    const py::gil_scoped_release unlocked;
    folder_.retire({.newest = newest, .loaded = loaded, .best = best});
  }

  CheckpointFolder& folder() { return folder_; }

 private:
  FileSystem files_;
  CheckpointFolder folder_;
};

DType dtype_named(const std::string& name) {
  for (const DType dtype :
       {DType::F32, DType::F16, DType::BF16, DType::F64, DType::I32, DType::I64, DType::U8})
    if (name == name_of(dtype)) return dtype;
  throw InvalidArgument("dtype " + name + ": a manifest cannot name it");
}

/// (name, part, dtype, extents, digest).
using TensorFields =
    std::tuple<std::string, std::string, std::string, std::vector<std::int64_t>, std::string>;
/// (file, bytes, digest, tensors).
using ShardFields = std::tuple<std::string, std::uint64_t, std::string, std::vector<TensorFields>>;

CheckpointShard shard_of(const ShardFields& fields) {
  CheckpointShard shard{std::get<0>(fields), std::get<1>(fields), std::get<2>(fields), {}};
  for (const auto& [name, part, dtype, extents, digest] : std::get<3>(fields))
    shard.tensors.push_back({name, part, dtype_named(dtype), Dims(std::span(extents)), digest});
  std::ranges::sort(shard.tensors, {}, tensor_key);
  return shard;
}

ShardFields described(const CheckpointShard& shard) {
  std::vector<TensorFields> tensors;
  for (const CheckpointTensor& tensor : shard.tensors)
    tensors.emplace_back(tensor.name,
                         tensor.part,
                         name_of(tensor.dtype),
                         std::vector<std::int64_t>(tensor.dims.begin(), tensor.dims.end()),
                         tensor.digest);
  return {shard.file, shard.bytes, shard.digest, tensors};
}

void bind_manifest(py::module_& module) {
  py::class_<Manifest>(module, "Manifest", "What a checkpoint's manifest.json says.")
      .def(py::init<>())
      .def_readwrite("precision", &Manifest::precision)
      .def_readwrite("optimizer", &Manifest::optimizer)
      .def_readwrite("settings", &Manifest::settings)
      .def_property(
          "validation",
          [](const Manifest& self) { return self.counters.validation; },
          [](Manifest& self, const ValidationRecord& record) { self.counters.validation = record; })
      .def_property(
          "counters",
          [](const Manifest& self) {
            const TrainingCounters& now = self.counters;
            return std::array<std::int64_t, 4>{
                now.global_step, now.mini_batches, now.position.epoch, now.position.batch};
          },
          [](Manifest& self, const std::array<std::int64_t, 4>& values) {
            TrainingCounters& now = self.counters;
            now.global_step = values[0];
            now.mini_batches = values[1];
            now.position = {values[2], values[3]};
          },
          "(global_step, mini_batches, epoch, batch).")
      .def_property(
          "shards",
          [](const Manifest& self) {
            std::vector<ShardFields> all;
            for (const CheckpointShard& shard : self.shards) all.push_back(described(shard));
            return all;
          },
          [](Manifest& self, const std::vector<ShardFields>& all) {
            self.shards.clear();
            for (const ShardFields& fields : all) self.shards.push_back(shard_of(fields));
            std::ranges::sort(self.shards, {}, &CheckpointShard::file);
          },
          "[(file, bytes, digest, [(name, part, dtype, extents, digest)])].")
      .def("text", &write_manifest);
  module.def(
      "read_checkpoint",
      [](const std::string& folder) {
        const py::gil_scoped_release unlocked;
        return Checkpoint(folder).manifest();
      },
      "folder"_a,
      "The manifest of a checkpoint, all of whose bytes were compared with their hashes.");
  module.def(
      "find_checkpoints",
      [](const std::string& root) {
        std::vector<std::string> folders;
        for (const CheckpointPlace& place : find_checkpoints(root)) folders.push_back(place.folder);
        return folders;
      },
      "root"_a,
      "Folders of checkpoints, newest first.");
  module.def(
      "resolve_best",
      [](const std::string& path) { return resolve_best(path); },
      "path"_a,
      "The folder that DIR/best stands for.");
  module.def(
      "bytes_digest",
      [](const py::buffer& bytes) {
        const py::buffer_info info = bytes.request();
        const auto size = static_cast<std::size_t>(info.size * info.itemsize);
        return bytes_digest({static_cast<const std::byte*>(info.ptr), size});
      },
      "bytes"_a,
      "xxh3-128 of contiguous memory.");
  module.def("combine_digests", &combine_digests, "digests"_a, "One of digests by name.");
}

void bind_validation(py::module_& module) {
  py::class_<ValidationRecord>(module, "ValidationRecord", "The validations of a training so far.")
      .def(py::init<>())
      .def_readonly("step", &ValidationRecord::step)
      .def_readonly("best_step", &ValidationRecord::best_step)
      .def_readonly("without_improvement", &ValidationRecord::without_improvement)
      .def_property_readonly(
          "metric", [](const ValidationRecord& self) { return std::string(name_of(self.metric)); })
      .def_readonly("data", &ValidationRecord::data);
  py::class_<ValidationOptions>(module, "ValidationRules", "When to validate, and what follows.")
      .def(py::init([](std::optional<std::int64_t> steps,
                       std::int64_t epochs,
                       const std::optional<std::string>& keep_best,
                       std::int64_t early_stopping,
                       double min_delta) {
             ValidationOptions options{steps, epochs, {}, early_stopping, min_delta};
             if (!keep_best) return options;
             for (const auto metric : {ValidationMetric::Loss, ValidationMetric::Accuracy})
               if (*keep_best == name_of(metric)) options.keep_best = metric;
             require(options.keep_best.has_value(),
                     "keep_best " + *keep_best + ": must be loss or accuracy");
             return options;
           }),
           "every_steps"_a = py::none(),
           "every_epochs"_a = 1,
           "keep_best"_a = py::none(),
           "early_stopping"_a = 0,
           "min_delta"_a = 0.0)
      .def(
          "fresh",
          [](const ValidationOptions& self, const std::string& data) {
            return ValidationRecord{.metric = self.metric(), .data = data};
          },
          "data"_a,
          "A record without validations.")
      .def("is_due", &is_validation_due, "step"_a, "epoch"_a, "batch"_a)
      .def(
          "next",
          [](const ValidationOptions& self,
             const ValidationRecord& record,
             std::int64_t step,
             double loss,
             double accuracy) {
            constexpr std::int64_t kOf = std::int64_t{1} << 40;
            const auto right = static_cast<std::int64_t>(accuracy * static_cast<double>(kOf));
            return next_record(record, self, step, {.loss = {loss, 1, right, kOf}, .samples = 1});
          },
          "record"_a,
          "step"_a,
          "loss"_a,
          "accuracy"_a,
          "The record after a validation.")
      .def("early_stop", &early_stop, "record"_a, "Why training ends; empty: it goes on.");
}

}  // namespace

void bind_checkpoints(py::module_& module) {
  py::class_<Folder>(module, "CheckpointFolder", "Where checkpoints are written, whole or not.")
      .def(py::init<const std::string&>(), "root"_a)
      .def_property_readonly("root", [](Folder& self) { return self.folder().root(); })
      .def("lock", &Folder::lock, "job"_a, "seconds"_a, "Empty, or the job that saves there.")
      .def("unlock", [](Folder& self) { self.folder().unlock(); })
      .def("prepare", [](Folder& self) { self.folder().prepare(); })
      .def(
          "probe",
          [](Folder& self, int process, std::uint64_t bytes) {
            self.folder().probe(process, bytes);
          },
          "process"_a,
          "bytes"_a)
      .def(
          "begin",
          [](Folder& self, std::int64_t step) { return self.folder().begin({step}); },
          "step"_a)
      .def(
          "abandon",
          [](Folder& self, std::int64_t step) { self.folder().abandon({step}); },
          "step"_a)
      .def("write", &Folder::write, "path"_a, "bytes"_a)
      .def("commit",
           &Folder::commit,
           "step"_a,
           "manifest"_a,
           "program"_a,
           "processes"_a,
           "facts"_a = std::map<std::string, std::string>())
      .def("retire", &Folder::retire, "newest"_a, "loaded"_a, "best"_a);
  bind_validation(module);
  bind_manifest(module);
}

}  // namespace millrace::python
