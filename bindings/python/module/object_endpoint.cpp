// Objects as bytes at a send, bytes as objects at a receive.
#include "module/object_endpoint.hpp"

#include <utility>

#include "module/object_stage.hpp"
#include "module/python_failure.hpp"
#include "module/tensors.hpp"

namespace millrace::python {

namespace {

bool has_objects(const MessageTag& tag) {
  return tag.direction != Direction::Collective;
}

}  // namespace

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

}  // namespace millrace::python
