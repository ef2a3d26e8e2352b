// An endpoint for stages of objects: what they send leaves as bytes and arrives as objects.
#pragma once

#include <pybind11/pybind11.h>

#include "millrace/transport/endpoint.hpp"

namespace millrace::python {

namespace py = pybind11;

/// Decorates an endpoint. `pack(objects)` returns arrays of bytes for a message, `unpack(arrays)`
/// its objects; collectives pass as they are. Thread-safety: as Endpoint; takes the interpreter's
/// lock by itself.
class ObjectEndpoint final : public Endpoint {
 public:
  /// `inner` must outlive this. Needs the lock.
  ObjectEndpoint(Endpoint& inner, py::object pack, py::object unpack);
  ~ObjectEndpoint() override;

  [[nodiscard]] Rank rank() const override { return inner_.rank(); }
  [[nodiscard]] int world() const override { return inner_.world(); }
  void send(Rank to, const MessageTag& tag, TensorList payload) override;
  [[nodiscard]] TensorList receive(Rank from, const MessageTag& tag, Deadline deadline) override;
  [[nodiscard]] std::optional<TensorList> try_receive(Rank from, const MessageTag& tag) override;
  void working(const Work& work) noexcept override { inner_.working(work); }
  [[nodiscard]] std::string doing() const override { return inner_.doing(); }
  [[nodiscard]] std::vector<SharedBytes> shared_bytes() const override {
    return inner_.shared_bytes();
  }
  void cancel(const std::string& reason) noexcept override { inner_.cancel(reason); }
  void leave(Deadline deadline) override { inner_.leave(deadline); }

 private:
  [[nodiscard]] TensorList objects_of(TensorList payload) const;

  Endpoint& inner_;
  py::object pack_, unpack_;
};

}  // namespace millrace::python
