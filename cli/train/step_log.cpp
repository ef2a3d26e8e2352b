// The log of a run: one line per step, every line whole whenever the process ends.
#include <cerrno>
#include <charconv>
#include <fcntl.h>
#include <fmt/format.h>
#include <fstream>
#include <iostream>
#include <optional>
#include <string_view>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>
#include <utility>

#include "cli/train/records.hpp"
#include "millrace/core/error.hpp"

namespace millrace::cli {

namespace {

constexpr std::string_view kFirstField = "{\"step\":";

std::string reason() {
  return std::generic_category().message(errno);
}

/// The step of a record.
std::optional<std::int64_t> step_in(std::string_view line, bool csv) {
  if (!csv) {
    if (line.substr(0, kFirstField.size()) != kFirstField || line.back() != '}') return {};
    line.remove_prefix(kFirstField.size());
  }
  std::int64_t step = 0;
  const auto [rest, error] = std::from_chars(line.data(), line.data() + line.size(), step);
  if (error != std::errc() || rest == line.data() + line.size() || *rest != ',') return {};
  return step;
}

bool is_plain_file(int file) {
  struct stat status {};
  return ::fstat(file, &status) == 0 && S_ISREG(status.st_mode);
}

}  // namespace

StepLog::StepLog(std::string path)
    : path_(std::move(path)),
      csv_(path_.size() > 4 && path_.ends_with(".csv")),
      made_(::access(path_.c_str(), F_OK) != 0),
      file_(::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666)) {
  require(file_ >= 0, [&] { return "--log " + path_ + " cannot be written: " + reason(); });
}

StepLog::~StepLog() {
  if (file_ >= 0) ::close(file_);
  if (made_ && !begun_) ::unlink(path_.c_str());
}

StepRecord StepLog::record_in(const std::string& line,
                              const std::string& columns,
                              std::int64_t number) const {
  try {
    return read_record(line, columns);
  } catch (const DataError&) {
    throw DataError(fmt::format(
        "--log {}: line {} is not a whole record of a step; --report needs all", path_, number));
  }
}

/// Bytes of the records up to `step`.
std::int64_t StepLog::end_of(std::int64_t step,
                             const StepRecord& form,
                             const std::function<void(const StepRecord&)>& each) const {
  std::ifstream file(path_, std::ios::binary);
  std::int64_t end = 0;
  std::int64_t number = 0;
  for (std::string line; std::getline(file, line) && !file.eof();) {
    ++number;
    if (csv_ && number == 1) {
      require(line == csv_columns(form),
              "--log " + path_ +
                  ": has the columns of another number of ranks, or of another version; give "
                  "another file, or one that ends in .jsonl");
    } else {
      const auto found = line.empty() ? std::nullopt : step_in(line, csv_);
      if (!found)
        throw DataError(fmt::format(
            "--log {}: line {} is not a record of a step; --resume continues the log of the run",
            path_,
            number));
      if (*found > step) break;
      if (each) each(record_in(line, csv_ ? csv_columns(form) : "", number));
    }
    end += static_cast<std::int64_t>(line.size()) + 1;
  }
  return end;
}

void StepLog::begin(bool resumes,
                    std::int64_t step,
                    const StepRecord& form,
                    const std::function<void(const StepRecord&)>& each) {
  begun_ = true;
  if (is_plain_file(file_)) {
    size_ = resumes ? end_of(step, form, each) : 0;
    if (::ftruncate(file_, size_) != 0)
      throw InvalidArgument("--log " + path_ + " cannot be written: " + reason());
  }
  if (csv_ && size_ == 0) write(csv_columns(form));
}

void StepLog::write(const std::string& line) {
  if (!fault_.empty()) return;
  const std::string text = line + "\n";
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t count = ::write(file_, text.data() + done, text.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    done += static_cast<std::size_t>(count);
  }
  if (done == text.size()) {
    size_ += static_cast<std::int64_t>(done);
    return;
  }
  fault_ = "--log " + path_ + " cannot be written: " + reason();
  std::cerr << fmt::format("millrace: {}; training continues, the log ends here\n", fault_);
  if (is_plain_file(file_) && ::ftruncate(file_, size_) != 0)
    fault_ += "; its last line is not whole";
}

void StepLog::add(const StepRecord& record) {
  write(csv_ ? csv_line(record) : json_line(record));
}

void StepLog::finish() const {
  if (!fault_.empty()) throw Error(fault_);
}

}  // namespace millrace::cli
