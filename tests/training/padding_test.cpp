// Padding behind documents changes nothing of what they give: not their loss, not their gradients.
#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "millrace/stages/module.hpp"
#include "millrace/stages/partition.hpp"
#include "millrace/training/loader.hpp"
#include "tests/training/uneven_lines.hpp"

namespace millrace {
namespace {

using testing_training::first_rows;
using testing_training::gpt;
using testing_training::lines;

/// What a stage reads of one micro-batch.
struct Tensors {
  TensorList inputs, targets;
};

/// `tensor` [n, positions] with `more` positions behind each row that hold `value`.
template <class T>
Tensor widened(const Tensor& tensor, std::int64_t more, T value) {
  const std::int64_t positions = tensor.dims()[1];
  Tensor wide(tensor.dtype(), {tensor.rows(), positions + more});
  const auto from = tensor.as<T>();
  T* to = wide.as<T>().data();
  for (std::int64_t row = 0; row < tensor.rows(); ++row) {
    const auto own = from.subspan(static_cast<std::size_t>(row * positions),
                                  static_cast<std::size_t>(positions));
    to = std::fill_n(std::ranges::copy(own, to).out, more, value);
  }
  return wide;
}

/// The first documents in so many micro-batches, with padding of another token behind the longest.
std::vector<Tensors> micro_batches(const Dataset& data,
                                   std::int32_t documents,
                                   int count,
                                   std::int64_t more) {
  Batch batch;
  batch.fill(data, first_rows(documents), count);
  std::vector<Tensors> all;
  for (int i = 0; i < count; ++i) {
    const Unit unit{MicroBatch{i}, Slice{0}};
    Tensors own;
    own.inputs.push_back(widened<std::int32_t>(batch.inputs(unit)[0], more, 7));
    own.targets.push_back(widened<std::int32_t>(batch.targets(unit)[0], more, 7));
    own.targets.push_back(widened<float>(batch.targets(unit)[1], more, 0.0F));
    all.push_back(std::move(own));
  }
  return all;
}

PassContext context_of(int micro_batch, const Tensors& of, double weight, LossSum& loss) {
  PassContext context;
  context.micro_batch = MicroBatch{micro_batch};
  context.targets = &of.targets;
  context.loss = &loss;
  context.loss_scale = 1 / weight;
  return context;
}

TensorList borrowed(TensorList& list) {
  TensorList lent;
  for (std::size_t i = 0; i < list.size(); ++i)
    lent.push_back(list[i].borrow_rows(0, list[i].rows()));
  return lent;
}

struct Found {
  LossSum loss;
  std::map<std::string, std::vector<float>> gradients;
};

/// The whole model, one micro-batch after the other.
Found run_through(const ModelSpec& spec, std::vector<Tensors> all, double weight) {
  const auto model = build_stage(spec, std::vector<int>{0, spec.layer_count()}, 0, 1);
  model->reserve(static_cast<int>(all.size()), 1);
  for (Parameter* parameter : model->parameters()) parameter->gradient.fill_zero();
  Found found;
  for (std::size_t i = 0; i < all.size(); ++i) {
    LossSum loss;
    const PassContext context = context_of(static_cast<int>(i), all[i], weight, loss);
    static_cast<void>(model->forward(context, borrowed(all[i].inputs)));
    static_cast<void>(model->backward(context, {}));
    found.loss += loss;
  }
  for (const Parameter* parameter : model->parameters()) {
    const auto values = parameter->gradient.as<float>();
    found.gradients[parameter->name] = {values.begin(), values.end()};
  }
  return found;
}

/// Largest difference of two gradients, in parts of the largest value.
double difference(const std::vector<float>& one, const std::vector<float>& other) {
  double most = 0;
  double largest = 0;
  for (std::size_t i = 0; i < one.size(); ++i) {
    most = std::max(most, std::abs(static_cast<double>(one[i]) - static_cast<double>(other[i])));
    largest = std::max(largest, std::abs(static_cast<double>(one[i])));
  }
  return largest > 0 ? most / largest : most;
}

// Products over other numbers of rows add in another order: 1e-5 of a tensor's largest value is
// what f32 leaves of it (measured: 8e-7).
TEST(Padding, ChangesNoLossAndNoGradient) {
  const TrainTest data = lines();
  for (const char* form : {"", ",pos=rotary,kv=2,mlp=swiglu,norm=rms", ",tied=yes"}) {
    const ModelSpec model = gpt(data, form);
    double tokens = 0;
    for (std::size_t i = 0; i < 9; ++i)
      tokens += static_cast<double>((*data.train.windows.documents)[i].positions);
    const Found alone = run_through(model, micro_batches(data.train, 9, 9, 0), tokens);
    EXPECT_EQ(alone.loss.weight, tokens);
    EXPECT_EQ(alone.loss.evaluated, static_cast<std::int64_t>(tokens));
    for (const int count : {1, 3})
      for (const std::int64_t more : {0, 1, 5}) {
        const Found padded = run_through(model, micro_batches(data.train, 9, count, more), tokens);
        EXPECT_NEAR(padded.loss.sum, alone.loss.sum, 1e-6 * alone.loss.sum) << form << more;
        EXPECT_EQ(padded.loss.weight, tokens);
        EXPECT_EQ(padded.loss.evaluated, alone.loss.evaluated);
        for (const auto& [name, gradient] : alone.gradients)
          EXPECT_LT(difference(gradient, padded.gradients.at(name)), 1e-5)
              << name << form << ", " << count << " micro-batches, " << more << " more";
      }
  }
}

/// What the second stage takes of what the first gives: along these edges, or all where there are
/// none.
TensorList across(const std::vector<CutEdge>& edges, const TensorList& given) {
  TensorList taken;
  for (std::size_t k = 0; edges.empty() && k < given.size(); ++k) taken.push_back(given[k].clone());
  for (std::size_t k = 0; k < edges.size(); ++k)
    for (const CutEdge& edge : edges)
      if (static_cast<std::size_t>(edge.input) == k)
        taken.push_back(given[static_cast<std::size_t>(edge.output)].clone());
  return taken;
}

TEST(Padding, GetsNoGradientAtAll) {
  const TrainTest data = lines();
  const ModelSpec spec = gpt(data, ",pos=rotary");
  for (int cut = 1; cut < spec.layer_count(); ++cut) {
    const std::vector<int> boundaries{0, cut, spec.layer_count()};
    const auto first = build_stage(spec, boundaries, 0, 1);
    const auto last = build_stage(spec, boundaries, 1, 1);
    for (StageModule* stage : {first.get(), last.get()}) {
      stage->reserve(1, 1);
      for (Parameter* parameter : stage->parameters()) parameter->gradient.fill_zero();
    }
    std::vector<Tensors> all = micro_batches(data.train, 9, 1, 3);
    LossSum loss;
    const PassContext context = context_of(0, all[0], 100, loss);
    PassContext of_first = context;
    of_first.targets = nullptr;
    of_first.loss = nullptr;
    const TensorList given = first->forward(of_first, borrowed(all[0].inputs));
    static_cast<void>(last->forward(context, across(cut_edges(spec, boundaries), given)));
    const TensorList gradients = last->backward(context, {});
    const auto weights = all[0].targets[1].as<float>();
    int padded = 0;
    ASSERT_GE(gradients.size(), 1U);
    for (std::size_t k = 0; k < gradients.size(); ++k) {
      const auto values = gradients[k].as<float>();
      const std::size_t columns = values.size() / weights.size();
      for (std::size_t i = 0; i < weights.size(); ++i) {
        const auto row = values.subspan(i * columns, columns);
        if (weights[i] == 0) {
          ++padded;
          ASSERT_EQ(std::ranges::count(row, 0.0F), static_cast<std::ptrdiff_t>(columns))
              << "cut " << cut << ", row " << i;
        }
      }
    }
    EXPECT_GT(padded, 27);
  }
}

}  // namespace
}  // namespace millrace
