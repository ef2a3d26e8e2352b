// Signals wait while oneDNN multiplies: its code for products points the stack pointer at memory of
// its own, where the frame of a handler would overwrite the heap.
#pragma once

#include <csignal>
#include <cstdint>
#include <sys/syscall.h>
#include <unistd.h>

#include "millrace/stages/stage.hpp"
#include "stages/kernels/backends.hpp"

namespace millrace {

/// As the kernel has it: the bit of signal n is n - 1.
using SignalMask = std::uint64_t;

template <class... Signals>
constexpr SignalMask all_signals_but(Signals... signals) {
  return ~(... | (SignalMask{1} << static_cast<unsigned>(signals - 1)));
}

/// Blocks the calling thread's signals, all but those of its own faults, and restores them at the
/// end, when those that came are delivered. Does nothing where the context's pass has blocked them
/// already, and in a build without oneDNN. Cost: two system calls.
class BlockedSignals {
 public:
  explicit BlockedSignals(const PassContext& context)
      : blocks_(kOneDnn && context.blocked_signals == nullptr) {
    if (blocks_) set(kBlocked, &before_);
  }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;
  ~BlockedSignals() {
    if (blocks_) set(before_);
  }

 private:
  friend class UnblockedSignals;
  static constexpr SignalMask kBlocked =
      all_signals_but(SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS);

  /// Not by pthread_sigmask, which leaves the C library's own two signals (of pthread_cancel and
  /// setuid) unblocked.
  static void set(SignalMask mask, SignalMask* before = nullptr) {
    ::syscall(SYS_rt_sigprocmask, SIG_SETMASK, &mask, before, sizeof mask);
  }

  bool blocks_;
  SignalMask before_ = 0;
};

/// Restores the signals that the context's pass has blocked, and blocks them again at the end. For
/// a pass that hands blocks to other threads: a thread that starts in the meantime inherits the
/// mask.
class UnblockedSignals {
 public:
  explicit UnblockedSignals(const PassContext& context) : pass_(context.blocked_signals) {
    if (pass_ != nullptr && pass_->blocks_) BlockedSignals::set(pass_->before_);
  }
  UnblockedSignals(const UnblockedSignals&) = delete;
  UnblockedSignals& operator=(const UnblockedSignals&) = delete;
  ~UnblockedSignals() {
    if (pass_ != nullptr && pass_->blocks_) BlockedSignals::set(BlockedSignals::kBlocked);
  }

 private:
  const BlockedSignals* pass_;
};

/// A pass, or a block of one, with signals blocked from its beginning to its end, so that its
/// products need not block them one by one.
class BlockedPass {
 public:
  explicit BlockedPass(const PassContext& context) : signals_(context), context_(context) {
    if (context_.blocked_signals == nullptr) context_.blocked_signals = &signals_;
  }
  BlockedPass(const BlockedPass&) = delete;
  BlockedPass& operator=(const BlockedPass&) = delete;
  ~BlockedPass() = default;

  [[nodiscard]] const PassContext& context() const { return context_; }

 private:
  BlockedSignals signals_;
  PassContext context_;
};

}  // namespace millrace
