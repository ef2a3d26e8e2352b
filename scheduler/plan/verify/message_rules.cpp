// Rule 6: one send and one receive for every edge that crosses ranks, none for one that does not.
#include <string>

#include "plan/verify/structure.hpp"

namespace millrace::plan {

void Structure::messages() {
  const Shape& shape = program_.shape;
  for (int stage = 0; stage < shape.stages(); ++stage)
    for (int micro_batch = 0; micro_batch < shape.micro_batches; ++micro_batch)
      for (int slice = 0; slice < shape.slices; ++slice) {
        const MicroBatch i{micro_batch};
        const auto replica = static_cast<std::uint8_t>(shape.replica(i).value);
        Action action{Op::Forward, false, replica, 0, Stage{stage}, i, Slice{slice}};
        const auto each = [&](Product product) {
          const Node made = lookup_.find(product, Stage{stage}, i, Slice{slice});
          for_each_link_out(
              graph_, action, [&](const StageLink& link) { message(action, made, link); });
        };
        each(Product::Forward);
        if (shape.forward_only) continue;
        action.op = Op::BackwardInput;
        each(Product::Gradient);
      }
}

/// The message of one product along a link. `made` is the product's node.
void Structure::message(const Action& producer, Node made, const StageLink& link) {
  const Action sender = send_of(producer, link), receiver = receive_of(producer, link);
  const Rank source = home(sender);
  const auto find = [&](const Action& action) {
    return lookup_.find(product(action.op), link.index, action.micro_batch, action.slice);
  };
  const Node sent = find(sender);
  const Node received = find(receiver);
  const auto place = [&](Rank rank, Node node) { return node - first_[rank.index()]; };
  if (home(receiver) == source) {
    const std::string why = ": both stages are on this rank";
    if (sent != kNoNode)
      report(Rule::Messages,
             source,
             place(source, sent),
             to_string(sender) + " has nobody to send to" + why);
    if (received != kNoNode)
      report(Rule::Messages,
             source,
             place(source, received),
             to_string(receiver) + " has nobody to receive from" + why);
    return;
  }
  const Rank destination = home(receiver);
  if (sent == kNoNode) report_missing(Rule::Messages, sender);
  if (received == kNoNode) report_missing(Rule::Messages, receiver);
  if (sent != kNoNode && made != kNoNode && sent < made)
    report(Rule::Messages,
           source,
           place(source, sent),
           to_string(sender) + " comes before its " + to_string(at(source, made)));
  const auto uses = producer.op == Op::Forward ? Product::Forward : Product::Gradient;
  const Node used = lookup_.find(uses, receiver.stage, producer.micro_batch, producer.slice);
  if (received != kNoNode && used != kNoNode && received > used)
    report(Rule::Messages,
           destination,
           place(destination, received),
           to_string(receiver) + " comes after its use in " + to_string(at(destination, used)));
}

}  // namespace millrace::plan
