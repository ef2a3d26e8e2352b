// What flows from stage to stage: a few tensors that travel together.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "millrace/core/tensor.hpp"

namespace millrace {

/// The tensors that cross a stage boundary together: usually one, so four fit without allocation.
/// An empty list is two words; the places of tensors that are not there are never touched, because
/// lists are moved several times per action and most are short.
/// Thread-safety: externally synchronised.
class TensorList {
 public:
  TensorList() noexcept {}  // NOLINT(modernize-use-equals-default): the union deletes it

  explicit TensorList(Tensor only) { push_back(std::move(only)); }

  TensorList(TensorList&& other) noexcept {
    if (!other.empty()) take_over(other);
  }

  TensorList& operator=(TensorList&& other) noexcept {
    if (this == &other) return *this;
    clear();
    if (!other.empty()) take_over(other);
    return *this;
  }

  TensorList(const TensorList&) = delete;
  TensorList& operator=(const TensorList&) = delete;

  ~TensorList() { clear(); }

  void push_back(Tensor tensor) {
    if (size_ < kFew) {
      std::construct_at(&few_[size_], std::move(tensor));
    } else {
      if (more_ == nullptr) more_ = std::make_unique<std::vector<Tensor>>();
      more_->push_back(std::move(tensor));
    }
    ++size_;
  }

  [[nodiscard]] bool empty() const { return size_ == 0; }
  [[nodiscard]] std::size_t size() const { return size_; }
  /// Throws InvalidArgument when the list has no tensor `i`.
  [[nodiscard]] Tensor& operator[](std::size_t i) {
    require_index(i);
    return i < kFew ? few_[i] : (*more_)[i - kFew];
  }
  [[nodiscard]] const Tensor& operator[](std::size_t i) const {
    require_index(i);
    return i < kFew ? few_[i] : (*more_)[i - kFew];
  }

  void clear() noexcept {
    if (!empty()) drop();
  }

  [[nodiscard]] std::size_t bytes() const {
    std::size_t total = 0;
    for (std::size_t i = 0; i < size_; ++i) total += (*this)[i].bytes();
    return total;
  }

 private:
  static constexpr std::size_t kFew = 4;

  void require_index(std::size_t i) const {
    require(i < size_, [&] {
      return "tensor " + std::to_string(i) + " was asked of a list of " + std::to_string(size_) +
             (size_ == 1 ? " tensor" : " tensors");
    });
  }

  /// Into an empty list.
  void take_over(TensorList& other) noexcept {
    size_ = std::exchange(other.size_, 0);
    for (std::size_t i = 0; i < std::min(size_, kFew); ++i) {
      std::construct_at(&few_[i], std::move(other.few_[i]));
      std::destroy_at(&other.few_[i]);
    }
    more_ = std::move(other.more_);
  }

  void drop() noexcept {
    for (std::size_t i = 0; i < std::min(size_, kFew); ++i) std::destroy_at(&few_[i]);
    more_.reset();
    size_ = 0;
  }

  std::size_t size_ = 0;
  std::unique_ptr<std::vector<Tensor>> more_;  // the fifth and later ones
  union {
    // NOLINTNEXTLINE(*-avoid-c-arrays): a std::array would itself have to be alive
    Tensor few_[kFew];  // the first min(size_, kFew) are alive
  };
};

}  // namespace millrace
