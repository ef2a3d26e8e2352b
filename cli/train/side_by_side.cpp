#include "cli/train/side_by_side.hpp"

#include <chrono>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "cli/exit_codes.hpp"
#include "cli/subcommands.hpp"
#include "millrace/core/error.hpp"
#include "millrace/training/trainer.hpp"

namespace millrace::cli {

namespace {

using namespace std::chrono_literals;

bool blames_another(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const std::exception& error) {
    const int code = exit_code_of(error);
    return code == kLostPeer || code == kHang;
  } catch (const ExitCode&) {
    return false;
  }
}

/// A rank that fails is soon lost to the others, which may report that first.
class FirstFailure {
 public:
  void note(const std::exception_ptr& failure) {
    const bool lost = blames_another(failure);
    const std::lock_guard lock(mutex_);
    if (first_ && (lost || !only_lost_)) return;
    first_ = failure;
    only_lost_ = lost;
  }

  void rethrow() const {
    if (first_) std::rethrow_exception(first_);
  }

 private:
  std::mutex mutex_;
  std::exception_ptr first_;
  bool only_lost_ = false;
};

void leave(Endpoint& endpoint, std::chrono::seconds longest) {
  endpoint.leave(std::chrono::steady_clock::now() + longest);
}

/// The others find the same difference, once they have the message of this rank.
void leave_disagreeing(Endpoint& endpoint) {
  try {
    leave(endpoint, 5s);
  } catch (const TransportError&) {
    return;  // they have left, or found another fault
  }
}

}  // namespace

void side_by_side(int count, const std::function<void(int)>& body) {
  FirstFailure failure;
  const auto run = [&](int place) {
    try {
      body(place);
    } catch (...) {
      failure.note(std::current_exception());
    }
  };
  {
    std::vector<std::jthread> others;
    for (int place = 1; place < count; ++place) others.emplace_back(run, place);
    run(0);
  }
  failure.rethrow();
}

void work_and_leave(Endpoint& endpoint, ProcessGroup& group, const PlaceWork& work, bool several) {
  try {
    work(endpoint, group);
  } catch (const Diverged&) {
    leave(endpoint, 30s);  // every rank ends so, after the same step: none is lost
    throw;
  } catch (const SaveFailed&) {
    leave(endpoint, 30s);  // as above
    throw;
  } catch (const ExitCode&) {
    leave(endpoint, 30s);  // all were asked to stop, and did so after the same step
    throw;
  } catch (const Mismatch&) {
    leave_disagreeing(endpoint);
    throw;
  } catch (const std::exception& error) {
    if (several) endpoint.cancel(error.what());
    throw;
  }
  leave(endpoint, 30s);
}

}  // namespace millrace::cli
