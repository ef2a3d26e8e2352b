// An endpoint for stages of objects: what they send leaves as bytes and arrives as objects.
#include <utility>

#include "millrace/transport/endpoint.hpp"
#include "module/object_stage.hpp"
#include "module/python_failure.hpp"
#include "module/tensors.hpp"

namespace millrace::python {

namespace {

bool has_objects(const MessageTag& tag) {
  return tag.direction != Direction::Collective;
}

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

ObjectEndpoint::ObjectEndpoint(Endpoint& inner, py::object pack, py::object unpack)
    : inner_(inner), pack_(std::move(pack)), unpack_(std::move(unpack)) {}

ObjectEndpoint::~ObjectEndpoint() {
  const py::gil_scoped_acquire locked;
  pack_ = unpack_ = py::object();
}

void ObjectEndpoint::send(Rank to, const MessageTag& tag, TensorList payload) {
  if (has_objects(tag)) {
    const py::gil_scoped_acquire locked;
    py::list objects;
    for (std::size_t i = 0; i < payload.size(); ++i) objects.append(object_of(payload[i]));
    try {
      payload = tensors_of(pack_(objects), "pack");
    } catch (py::error_already_set& raised) {
      throw PythonFailure(raised);
    }
  }
  inner_.send(to, tag, std::move(payload));
}

TensorList ObjectEndpoint::objects_of(TensorList payload) const {
  const py::gil_scoped_acquire locked;
  py::list arrays;
  for (std::size_t i = 0; i < payload.size(); ++i) arrays.append(to_array(std::move(payload[i])));
  TensorList objects;
  try {
    for (const py::handle object : unpack_(arrays))
      objects.push_back(reference_to(py::reinterpret_borrow<py::object>(object)));
  } catch (py::error_already_set& raised) {
    throw PythonFailure(raised);
  }
  return objects;
}

TensorList ObjectEndpoint::receive(Rank from, const MessageTag& tag, Deadline deadline) {
  TensorList payload = inner_.receive(from, tag, deadline);
  return has_objects(tag) ? objects_of(std::move(payload)) : std::move(payload);
}

std::optional<TensorList> ObjectEndpoint::try_receive(Rank from, const MessageTag& tag) {
  std::optional<TensorList> payload = inner_.try_receive(from, tag);
  if (payload && has_objects(tag)) *payload = objects_of(std::move(*payload));
  return payload;
}

}  // namespace

std::unique_ptr<Endpoint> object_endpoint(Endpoint& inner, py::object pack, py::object unpack) {
  return std::make_unique<ObjectEndpoint>(inner, std::move(pack), std::move(unpack));
}

}  // namespace millrace::python
